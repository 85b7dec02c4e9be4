"""The oracle: transformers, on the demo model and on small random configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.checkpoints import CONFIGS, make
from engine.local import LocalModel
from engine.ranks import TINY
from moesaic.engine.model.checkpoint import Checkpoint

TOLERANCE = 1e-4


@pytest.fixture(params=["moesaic-tiny", *CONFIGS])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[torch.nn.Module, Checkpoint]:
    if request.param == "moesaic-tiny":
        return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval(), Checkpoint(TINY)
    model = make(tmp_path, request.param, shards=3)
    assert (tmp_path / "model.safetensors.index.json").exists()
    return model, Checkpoint(tmp_path)


def _sequences(vocab: int, *lengths: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(3, vocab, (n,), generator=draw).tolist() for n in lengths]


@pytest.mark.parametrize("mode", ["fast", "exact"])
@torch.inference_mode()
def test_logits_under_teacher_forcing_are_the_oracles(pair: tuple[torch.nn.Module, Checkpoint], mode: str) -> None:
    oracle, checkpoint = pair
    ours = LocalModel(checkpoint, mode)
    a, b = _sequences(checkpoint.config.vocab, 40, 23)
    want_a, want_b = (oracle(torch.tensor([s])).logits[0] for s in (a, b))
    blocks_a, blocks_b = [7, 2, 9, 0, 5], [3, 1, 8]
    # prompts in chunks, side by side, then single tokens beside a chunk
    first = ours.run([(a[:13], 0, blocks_a), (b[:22], 0, blocks_b)])
    second = ours.run([(a[13:39], 13, blocks_a), (b[22:], 22, blocks_b)])
    third = ours.run([(a[39:], 39, blocks_a)])
    for got, want in zip(
        (*first, *second, *third), (want_a[12], want_b[21], want_a[38], want_b[22], want_a[39]), strict=True
    ):
        assert (got - want).abs().max() < TOLERANCE * max(1.0, float(want.std()))


@torch.inference_mode()
def test_greedy_tokens_are_the_oracles_wherever_its_margin_is_clear(
    pair: tuple[torch.nn.Module, Checkpoint],
) -> None:
    oracle, checkpoint = pair
    ours = LocalModel(checkpoint, "fast")
    (tokens,) = _sequences(checkpoint.config.vocab, 12)
    first, unclear = 0, 0
    for _ in range(48):
        got = ours.run([(tokens[first:], first, list(range(8)))])[0]
        want = oracle(torch.tensor([tokens])).logits[0, -1]
        best, second = want.topk(2).values.tolist()
        if best - second > TOLERANCE:
            assert int(got.argmax()) == int(want.argmax())
        else:
            unclear += 1
        first = len(tokens)
        tokens.append(int(want.argmax()))
    assert unclear < 5
