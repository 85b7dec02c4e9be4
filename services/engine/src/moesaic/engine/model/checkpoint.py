"""A checkpoint folder: memory-mapped safetensors, one file or sharded, checked before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from moesaic.engine.model import qwen3_moe
from moesaic.engine.model.config import ModelConfig, ModelError, architecture_of, read_json

FAMILIES = {qwen3_moe.ARCHITECTURE: qwen3_moe}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_SAMPLE = 1 << 16


class Checkpoint:
    """Tensors by name, read on demand; safe to use from several threads."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ModelError(f"{self.folder} is no folder: give --model a checkpoint in Hugging Face layout")
        self.raw = read_json(self.folder / "config.json")
        architecture = architecture_of(self.raw)
        if architecture not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise ModelError(f"architecture {architecture} is not supported; supported: {known}")
        self.config: ModelConfig = FAMILIES[architecture].read_config(self.folder, self.raw)
        self._paths = self._find()
        self._files = {path: _open(path) for path in sorted(set(self._paths.values()))}
        self._check(FAMILIES[architecture].tensors(self.config))
        self.digest = self._digest()

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A whole tensor."""
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor.to(dtype)

    def rows(self, name: str, step: int) -> Iterator[tuple[int, torch.Tensor]]:
        """A tensor in pieces of at most `step` rows: (first row, piece), in the stored type."""
        part = self._file(name).get_slice(name)
        for first in range(0, part.get_shape()[0], step):
            yield first, part[first : first + step]

    def tokenizer_files(self) -> dict[str, bytes]:
        """Files that a gateway needs, by name."""
        found = {n: (self.folder / n).read_bytes() for n in TOKENIZER_FILES if (self.folder / n).exists()}
        if "tokenizer.json" not in found:
            raise ModelError(f"{self.folder / 'tokenizer.json'} is missing")
        return found

    def _file(self, name: str) -> Any:
        return self._files[self._paths[name]]

    def _find(self) -> dict[str, Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            shards: Mapping[str, str] = read_json(index).get("weight_map", {})
            return {name: self.folder / file for name, file in shards.items()}
        single = self.folder / "model.safetensors"
        if not single.exists():
            raise ModelError(f"{self.folder} has neither model.safetensors nor model.safetensors.index.json")
        return dict.fromkeys(_open(single).keys(), single)

    def _check(self, wanted: dict[str, tuple[int, ...]]) -> None:
        there = set(self._paths)
        for path, file in self._files.items():
            there -= {name for name, at in self._paths.items() if at == path} - set(file.keys())
        problems = [f"missing {name}" for name in sorted(set(wanted) - there)]
        for name in sorted(set(wanted) & there):
            shape = tuple(self._file(name).get_slice(name).get_shape())
            if shape != wanted[name]:
                problems.append(f"{name} is {shape}, expected {wanted[name]}")
        # a tied head may be stored all the same
        surplus = there - set(wanted) - ({"lm_head.weight"} if self.config.tied else set())
        problems += [f"unexpected {name}" for name in sorted(surplus)]
        if problems:
            more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
            raise ModelError(f"{self.folder}: " + "; ".join(problems[:10]) + more)

    def _digest(self) -> str:
        """A name for the content: config, every file's size, header and both ends. Not a checksum of every byte."""
        hash_ = hashlib.blake2b(json.dumps(self.raw, sort_keys=True).encode(), digest_size=12)
        for path in self._files:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
                hash_.update(f"{path.name} {size} ".encode())
                hash_.update(file.read(header + _SAMPLE))
                file.seek(max(0, size - _SAMPLE))
                hash_.update(file.read(_SAMPLE))
        return hash_.hexdigest()


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}): truncated or not a safetensors file") from error
