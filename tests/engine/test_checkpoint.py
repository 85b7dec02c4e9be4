"""A broken checkpoint is told in one line that names what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.ranks import TINY
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.config import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(TINY, tmp_path / "m", ignore=shutil.ignore_patterns("recipe"))
    return tmp_path / "m"


def _edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    raw = json.loads((folder / "config.json").read_text())
    change(raw)
    (folder / "config.json").write_text(json.dumps(raw))


def _retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_older_config_files_mean_the_same(folder: Path) -> None:
    newer = Checkpoint(folder).config
    _edit(folder, lambda c: c.update(num_experts=c.pop("num_local_experts"), rope_theta=1e4, rope_scaling=None))
    _edit(folder, lambda c: c.pop("rope_parameters"))
    assert Checkpoint(folder).config == newer


def test_unsupported_architecture_names_the_supported(folder: Path) -> None:
    _edit(folder, lambda c: c.update(architectures=["LlamaForCausalLM"]))
    with pytest.raises(ModelError, match=r"LlamaForCausalLM is not supported; supported: Qwen3MoeForCausalLM"):
        Checkpoint(folder)


def test_every_bad_setting_is_named_at_once(folder: Path) -> None:
    _edit(folder, lambda c: c.update(hidden_act="gelu", attention_bias=True, num_experts_per_tok=99))
    _edit(folder, lambda c: c.pop("moe_intermediate_size"))
    with pytest.raises(ModelError) as error:
        Checkpoint(folder)
    assert all(name in str(error.value) for name in ("hidden_act", "attention_bias", "99", "moe_intermediate_size"))


def test_missing_surplus_and_misshapen_tensors_are_all_named(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.0.mlp.experts.3.up_proj.weight"]
        tensors["model.layers.9.extra"] = torch.zeros(1)
        tensors["model.norm.weight"] = torch.zeros(7)

    _retensor(folder, change)
    with pytest.raises(ModelError) as error:
        Checkpoint(folder)
    for part in ("missing model.layers.0.mlp.experts.3.up_proj", "unexpected model.layers.9.extra", "(7,)"):
        assert part in str(error.value)


@pytest.mark.parametrize("size", [4, 5000, 29_000_000])
def test_a_truncated_file_is_told_as_such(folder: Path, size: int) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(size)
    with pytest.raises(ModelError, match="truncated"):
        Checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        Checkpoint(folder)


def test_another_content_has_another_digest(folder: Path) -> None:
    before = Checkpoint(folder).digest
    _retensor(folder, lambda t: t["model.norm.weight"].mul_(2))
    assert Checkpoint(folder).digest != before
