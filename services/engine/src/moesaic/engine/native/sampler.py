"""From logits to tokens. Noise is a hash of (seed, output index): the same wherever and beside whatever it is drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moesaic.shared.messages import Sampling, TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


@dataclass(frozen=True)
class Draw:
    """One row to sample: output `index` of a request."""

    sampling: Sampling
    index: int


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from a seed and an output index."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def sample(logits: Tensor, draws: Sequence[Draw], eos: Sequence[int]) -> list[int]:
    """A token per row: logits `[S, vocab]`, one draw each."""
    allowed = _without_stops(logits, draws, eos)
    chosen: list[int] = allowed.argmax(dim=-1).tolist()
    random = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if random:
        for row, token in zip(random, _draw(allowed[random], [draws[r] for r in random]), strict=True):
            chosen[row] = token
    return chosen


def _without_stops(logits: Tensor, draws: Sequence[Draw], eos: Sequence[int]) -> Tensor:
    """Before `min_tokens`, nothing that would end the output can be drawn."""
    short = [row for row, draw in enumerate(draws) if draw.index < draw.sampling.min_tokens]
    if not short:
        return logits
    masked = logits.clone()
    for row in short:
        ends = [i for i in (*eos, *draws[row].sampling.stop_token_ids) if 0 <= i < logits.shape[1]]
        masked[row, ends] = -torch.inf
    return masked


def _draw(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    settings = [draw.sampling for draw in draws]
    scaled = logits.double() / column([s.temperature for s in settings])
    ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    place = torch.arange(logits.shape[1], device=logits.device)[None]
    limits = column([s.top_k or logits.shape[1] for s in settings])
    keep = (before < column([s.top_p for s in settings])) & (place < limits)
    keep &= probabilities >= column([s.min_p for s in settings]) * probabilities[:, :1]
    keep[:, 0] = True
    mass = torch.where(keep, probabilities, 0.0).cumsum(dim=-1)
    point = column([uniform(d.sampling.seed, d.index) for d in draws]) * mass[:, -1:]
    found = torch.searchsorted(mass, point, right=True).clamp(max=logits.shape[1] - 1)
    chosen: list[int] = tokens.gather(1, found)[:, 0].tolist()
    return chosen


def logprobs(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Natural log-probabilities of one row `[vocab]`: the token's and the `top` most likely, never below FLOOR."""
    values = torch.log_softmax(logits.double(), dim=-1).clamp(min=FLOOR)
    best = values.topk(min(top, values.numel()))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return TokenLogprob(logprob=float(values[token]), top=tuple(pairs))
