"""`fast`: tokens may differ from the exact reference only where its own margin, of argmax or router, is below the tolerance."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from engine.local import BLOCK, CPU, LocalModel
from engine.placements import placement, shuffled
from engine.prompts import PROMPTS, ids
from engine.ranks import TINY, Ranks
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.decoder import Experts
from moesaic.engine.model.step import lay_out

LOGIT_TOLERANCE = 1e-3
ROUTER_TOLERANCE = 1e-4
"""Gap of router probabilities between the last chosen and the first rejected expert."""


class _Margins:
    """Experts that also note each position's smallest router margin."""

    def __init__(self, model: LocalModel, inner: Experts) -> None:
        self.model, self.inner = model, inner
        self.smallest: Tensor | None = None

    def __call__(self, moe_layer: int, x: Tensor, experts: Tensor) -> Tensor:
        router = self.model.decoder.layers[self.model.checkpoint.config.moe_layers[moe_layer]].router
        assert router is not None
        best = torch.softmax(x @ router.T, dim=-1).topk(experts.shape[1] + 1).values
        gap = best[:, -2] - best[:, -1]
        self.smallest = gap if self.smallest is None else torch.minimum(self.smallest, gap)
        return self.inner(moe_layer, x, experts)


def _forced(mode: str, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits at every position of a given sequence, and router margins."""
    model = LocalModel(Checkpoint(TINY), mode)
    step = lay_out([(tokens, 0, list(range(len(tokens) // BLOCK + 1)), False, True)], BLOCK, CPU)
    step = step.__class__(**{**step.__dict__, "sample_rows": torch.arange(len(tokens))})
    margins: list[_Margins] = []

    def watched(inner: Experts) -> Experts:
        margins.append(_Margins(model, inner))
        return margins[-1]

    logits = model.forward(step, watched)
    assert margins[0].smallest is not None
    return logits, margins[0].smallest


def test_logits_under_teacher_forcing_stay_within_the_tolerance() -> None:
    for prompt in PROMPTS:
        tokens = ids(prompt) * 3
        fast, exact = _forced("fast", tokens)[0], _forced("exact", tokens)[0]
        assert (fast - exact).abs().max() < LOGIT_TOLERANCE


def test_tokens_under_switches_differ_only_where_the_references_margin_is_small() -> None:
    length = 60
    with Ranks(2, mode="fast", spare_slots=4) as ranks:
        group = ranks.form()
        for i, prompt in enumerate(PROMPTS):
            ranks.submit(i % 2, f"p{i}", ids(prompt), max_tokens=length, ignore_eos=True)
        for epoch in range(1, 6):
            ranks.offer(epoch, placement(group, shuffled(group, epoch)))
            ranks.until(partial(ranks.switched, epoch))
        ranks.finish(*(f"p{i}" for i in range(len(PROMPTS))))
        assert len({r.step for r in ranks.reports("committed")}) > 4
    differences = 0
    for i, prompt in enumerate(PROMPTS):
        prompt_ids, outputs = ids(prompt), ranks.tokens[f"p{i}"]
        logits, router = _forced("exact", prompt_ids + outputs[:-1])
        for at, token in enumerate(outputs, start=len(prompt_ids) - 1):
            if token == int(logits[at].argmax()):
                continue
            differences += 1
            best, chosen = float(logits[at].max()), float(logits[at, token])
            assert best - chosen < LOGIT_TOLERANCE or float(router[: at + 1].min()) < ROUTER_TOLERANCE
    assert differences <= length * len(PROMPTS) // 100
