"""Routers: hidden states to experts and weights, per family."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_top_k(logits: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, then the best k: logits `[T, E]` to weights and expert ids `[T, K]`, best first."""
    weights, experts = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts
