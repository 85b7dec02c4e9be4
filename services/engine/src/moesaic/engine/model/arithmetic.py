"""The two modes' arithmetic. `Exact`: each row's bits are independent of the rows beside it; `Fast`: whatever is fastest.

Why `Exact` works (float32 on CPU, measured): a matrix product over a fixed tile of 8 rows gives a row the same bits at any
place in the tile, beside any rows; an elementwise function gives the same bits wherever the vector kernel, and not its
scalar tail, reaches; reductions over the last dimension are per row.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

TILE = 8
VECTOR = 64
"""Elements after which no vector kernel has a tail left."""


class Arithmetic(Protocol):
    """What differs between the modes."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Product of `x [N, I]` and `weight [O, I]`, transposed: `[N, O]`."""

    def silu(self, x: Tensor) -> Tensor:
        """X * sigmoid(x)."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
        """Causal attention of one sequence.

        query `[T, KV, G, D]` at positions first … first+T-1, keys and values `[N, KV, D]` with N = first+T; `[T, KV, G, D]`.
        """


class Fast:
    """Plain batched operators."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Arithmetic."""
        return functional.linear(x, weight)

    def silu(self, x: Tensor) -> Tensor:
        """See Arithmetic."""
        return functional.silu(x)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
        """See Arithmetic."""
        tokens, kv, group, dim = query.shape
        rows = query.permute(1, 0, 2, 3).reshape(1, kv, tokens * group, dim)
        mask = None
        if tokens > 1:
            at = torch.arange(first, first + tokens, device=query.device).repeat_interleave(group)
            mask = at[:, None] >= torch.arange(keys.shape[0], device=query.device)[None, :]
        out = functional.scaled_dot_product_attention(
            rows, keys.permute(1, 0, 2)[None], values.permute(1, 0, 2)[None], attn_mask=mask
        )
        return out.view(kv, tokens, group, dim).permute(1, 0, 2, 3)


class Exact:
    """Fixed tiles, one query row at a time."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Arithmetic."""
        rows = x.shape[0]
        padded = functional.pad(x, (0, 0, 0, -rows % TILE))
        tiles = [functional.linear(tile, weight) for tile in torch.split(padded, TILE)]
        return torch.cat(tiles)[:rows] if tiles else x.new_empty(0, weight.shape[0])

    def silu(self, x: Tensor) -> Tensor:
        """See Arithmetic."""
        flat = x.flatten()
        return functional.silu(functional.pad(flat, (0, -flat.numel() % VECTOR)))[: flat.numel()].view_as(x)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
        """See Arithmetic."""
        scale = query.shape[-1] ** -0.5
        out = torch.empty_like(query)
        for t in range(query.shape[0]):
            seen = first + t + 1
            k = keys[:seen].permute(1, 2, 0).contiguous()  # [KV, D, n]
            v = values[:seen].permute(1, 0, 2).contiguous()  # [KV, n, D]
            weights = torch.softmax(torch.matmul(query[t].contiguous() * scale, k), dim=-1)
            out[t] = torch.matmul(weights, v)
        return out


def by_name(mode: str) -> Arithmetic:
    """The arithmetic of a `--mode` setting."""
    return Exact() if mode == "exact" else Fast()
