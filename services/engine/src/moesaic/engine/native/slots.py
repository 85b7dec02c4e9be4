"""The pool of expert slots of one rank, shared by all layers, and the live tables that point into it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moesaic.engine.model.config import ModelConfig
from moesaic.shared import placement
from moesaic.shared.arrays import Ints
from moesaic.shared.messages import LayerPlacement

Expert = tuple[int, int]
"""(MoE layer, logical expert)"""


@dataclass(frozen=True)
class LayerTable:
    """Where one layer's experts are. Immutable: a switch replaces it."""

    ranks_of: Ints
    """`[E, X]` ranks with a copy, ascending, padded with -1."""
    shares: Ints
    """`[E, X]`"""
    slot_of: Ints
    """`[E]` this rank's slot, -1 where it has no copy."""

    @classmethod
    def of(cls, layer: LayerPlacement, experts: int, slots: dict[int, int]) -> LayerTable:
        """From a layer's placement and this rank's slots by expert."""
        ranks_of, shares = placement.hosts(layer, experts)
        slot_of = np.full(experts, -1, dtype=np.int64)
        for expert, slot in slots.items():
            slot_of[expert] = slot
        return cls(ranks_of, shares, slot_of)


class SlotPool:
    """`P` slots: gate and up `[P, 2I, H]`, down `[P, H, I]`. Which are free is guarded by a lock.

    The weights are not: a slot that was taken belongs to its taker until a live table names it.
    """

    def __init__(self, config: ModelConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.gate_up = torch.zeros(slots, 2 * config.expert_width, config.hidden, dtype=dtype, device=device)
        self.down = torch.zeros(slots, config.hidden, config.expert_width, dtype=dtype, device=device)
        self.slots = slots
        self._free = list(range(slots - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one expert's weights."""
        return bytes_of(self.gate_up[:1]) + bytes_of(self.down[:1])

    def take(self, count: int) -> list[int]:
        """Take free slots. Raises PlacementError if there are too few."""
        with self._lock:
            if count > len(self._free):
                raise placement.PlacementError(f"{count} slots wanted, {len(self._free)} free")
            return [self._free.pop() for _ in range(count)]

    def give(self, slots: Iterable[int]) -> None:
        """Give slots back. No live table may name them any more."""
        with self._lock:
            self._free.extend(slots)


def bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
