"""Paged KV and attention over it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from moesaic.engine.model.arithmetic import Arithmetic, Exact
from moesaic.engine.model.step import StepInput


class PagedKV:
    """Keys and values of all layers, `[slots, KV, D]` each per layer; a block is `block_size` neighbouring slots."""

    def __init__(
        self, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, slots, kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values `[T, KV, D]` at slots `[T]`."""
        self.keys[layer].index_copy_(0, slots, keys)
        self.values[layer].index_copy_(0, slots, values)


def attention(arithmetic: Arithmetic, kv: PagedKV, layer: int, query: Tensor, step: StepInput) -> Tensor:
    """Every token of the step over its own sequence's KV: query `[T, KV, G, D]` to the same shape."""
    keys, values = kv.keys[layer], kv.values[layer]
    out = torch.empty_like(query)
    alone = [span for span in step.spans if span.count > 1 or isinstance(arithmetic, Exact)]
    for span in alone:
        rows = slice(span.row, span.row + span.count)
        out[rows] = arithmetic.attend(query[rows], keys[span.slots], values[span.slots], span.first)
    batched = [span for span in step.spans if span.count == 1] if not isinstance(arithmetic, Exact) else []
    if batched:
        rows_ = torch.tensor([span.row for span in batched], device=query.device)
        out[rows_] = _decode(query[rows_], keys, values, [span.slots for span in batched])
    return out


def _decode(query: Tensor, keys: Tensor, values: Tensor, slots: list[Tensor]) -> Tensor:
    """One token each of B sequences: query `[B, KV, G, D]`."""
    lengths = torch.tensor([len(s) for s in slots], device=query.device)
    table = torch.nn.utils.rnn.pad_sequence(slots, batch_first=True)  # [B, N]
    mask = torch.arange(table.shape[1], device=query.device)[None] < lengths[:, None]
    return functional.scaled_dot_product_attention(
        query, keys[table].transpose(1, 2), values[table].transpose(1, 2), attn_mask=mask[:, None, None]
    )
