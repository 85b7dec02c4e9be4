"""Experts' weights from the checkpoint into slots, piece by piece, checked by digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.native.slots import Expert, SlotPool, bytes_of

PIECE = 1 << 20
"""Bytes moved between two looks at the allowance."""

Allow = Callable[[int], None]
"""Called before so many bytes are written; may wait, and may raise to give up."""


class DigestMismatch(RuntimeError):
    """A slot does not hold what was read for it."""


class ExpertSource:
    """Reads experts from the local checkpoint, which every rank has whole."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.experts = checkpoint.config.experts

    def load(self, expert: Expert, pool: SlotPool, slot: int, allow: Allow) -> int:
        """Fill a slot; the bytes written. Raises DigestMismatch."""
        layer = self._checkpoint.config.moe_layers[expert[0]]
        at = f"model.layers.{layer}.mlp.experts.{expert[1]}."
        width = self._checkpoint.config.expert_width
        gate_up, down = pool.gate_up[slot], pool.down[slot]
        written = 0
        for name, into in (("gate_proj", gate_up[:width]), ("up_proj", gate_up[width:]), ("down_proj", down)):
            read = hashlib.blake2b(digest_size=16)
            step = max(1, PIECE // bytes_of(into[0]))
            for row, piece in self._checkpoint.rows(f"{at}{name}.weight", step):
                packed = piece.to(into.dtype)
                allow(bytes_of(packed))
                read.update(_raw(packed))
                into[row : row + packed.shape[0]].copy_(packed)
                written += bytes_of(packed)
            if hashlib.blake2b(_raw(into), digest_size=16).digest() != read.digest():
                raise DigestMismatch(
                    f"layer {layer} expert {expert[1]} {name}: slot {slot} differs from the checkpoint"
                )
        return written


def _raw(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
