"""`exact`: a row's bits do not depend on the rows beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.local import LocalModel
from engine.ranks import TINY
from moesaic.engine.model.arithmetic import Exact
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.decoder import mlp, rms_norm
from moesaic.engine.model.routing import softmax_top_k

EXACT = Exact()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    at=st.integers(0, 39),
    width=st.sampled_from([32, 36, 64, 100, 256]),
    seed=st.integers(0, 99),
)
def test_every_operator_gives_a_row_the_same_bits_anywhere_in_any_batch(
    rows: int, at: int, width: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    at %= rows
    x = torch.randn(rows, width, generator=draw)
    gate_up, down = torch.randn(2 * 36, width, generator=draw), torch.randn(width, 36, generator=draw)
    router = torch.randn(16, width, generator=draw)
    alone = x[at : at + 1]
    assert torch.equal(mlp(EXACT, x, gate_up, down)[at], mlp(EXACT, alone, gate_up, down)[0])
    assert torch.equal(rms_norm(x, down[:, 0], 1e-6)[at], rms_norm(alone, down[:, 0], 1e-6)[0])
    many, one = (softmax_top_k(EXACT.linear(rows_, router), 4, renormalise=True) for rows_ in (x, alone))
    assert torch.equal(many[0][at], one[0][0])
    assert torch.equal(many[1][at], one[1][0])


@pytest.mark.parametrize("chunks", [(30,), (1, 29), (7, 16, 7), (16, 14), tuple([1] * 30)])
@torch.inference_mode()
def test_logits_are_bitwise_the_same_however_a_prompt_is_chunked_and_whatever_runs_beside_it(
    chunks: tuple[int, ...],
) -> None:
    tokens = torch.arange(100, 130).tolist()
    reference = LocalModel(Checkpoint(TINY), "exact").run([(tokens, 0, [0, 1, 2, 3])])[0]
    model = LocalModel(Checkpoint(TINY), "exact")
    done, beside = 0, torch.arange(900, 905).tolist()
    for count in chunks:
        logits = model.run([(beside, 0, [9]), (tokens[done : done + count], done, [6, 3, 8, 1])])
        done += count
    assert torch.equal(logits[1], reference)
