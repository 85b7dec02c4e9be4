"""What one forward pass computes, in tensors: the scheduler's batch laid out flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """One request's tokens in the flat batch: rows `row … row+count-1` at positions `first … first+count-1`."""

    row: int
    count: int
    first: int
    slots: Tensor
    """KV slots of positions 0 … first+count-1."""


@dataclass(frozen=True)
class StepInput:
    """A flat batch of T tokens."""

    tokens: Tensor
    """`[T]`"""
    positions: Tensor
    """`[T]`"""
    kv_slots: Tensor
    """`[T]` where each token's KV is written."""
    spans: tuple[Span, ...]
    sample_rows: Tensor
    """`[S]` rows whose logits are wanted."""
    decode: Tensor
    """`[T]` bool: a decode token (else prefill)."""

    @property
    def size(self) -> int:
        """T."""
        return int(self.tokens.shape[0])


def lay_out(
    chunks: Sequence[tuple[Sequence[int], int, Sequence[int], bool, bool]], block_size: int, device: torch.device
) -> StepInput:
    """Chunks (tokens, first position, KV blocks, decode?, sample?) to a StepInput."""
    spans: list[Span] = []
    tokens: list[int] = []
    positions: list[np.ndarray] = []
    kv: list[np.ndarray] = []
    decode: list[bool] = []
    sample: list[int] = []
    for ids, first, blocks, is_decode, wants in chunks:
        end = first + len(ids)
        starts = np.asarray(blocks[: -(-end // block_size)], dtype=np.int64) * block_size
        slots = (starts[:, None] + np.arange(block_size)).reshape(-1)[:end]
        spans.append(Span(len(tokens), len(ids), first, torch.from_numpy(slots).to(device)))
        tokens.extend(ids)
        positions.append(np.arange(first, end))
        kv.append(slots[first:])
        decode.extend([is_decode] * len(ids))
        if wants:
            sample.append(len(tokens) - 1)
    return StepInput(
        tokens=torch.tensor(tokens, dtype=torch.long, device=device),
        positions=_flat(positions, device),
        kv_slots=_flat(kv, device),
        spans=tuple(spans),
        sample_rows=torch.tensor(sample, dtype=torch.long, device=device),
        decode=torch.tensor(decode, dtype=torch.bool, device=device),
    )


def _flat(parts: list[np.ndarray], device: torch.device) -> Tensor:
    joined = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return torch.from_numpy(joined.astype(np.int64)).to(device)
