"""The transformer of one rank: attention here, experts wherever the placement put them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moesaic.engine.model.arithmetic import Arithmetic
from moesaic.engine.model.attention import PagedKV, attention
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.config import ModelConfig
from moesaic.engine.model.routing import softmax_top_k
from moesaic.engine.model.step import StepInput


class Experts(Protocol):
    """Computes routed experts, here or elsewhere."""

    def __call__(self, moe_layer: int, x: Tensor, experts: Tensor) -> Tensor:
        """Outputs `[T, K, H]` of the experts `[T, K]` for hidden states `[T, H]`, unweighted."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer without its experts."""

    norm1: Tensor
    norm2: Tensor
    qkv: Tensor
    """`[(heads + 2 KV) * D, H]`"""
    out: Tensor
    q_norm: Tensor
    k_norm: Tensor
    router: Tensor | None
    """`[E, H]`; None in a dense layer."""
    gate_up: Tensor | None
    down: Tensor | None
    """The MLP of a dense layer."""


class Decoder:
    """Everything but the experts' weights."""

    def __init__(
        self, checkpoint: Checkpoint, arithmetic: Arithmetic, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = checkpoint.config
        self.arithmetic = arithmetic

        def read(name: str) -> Tensor:
            return checkpoint.read(name, dtype).to(device)

        self.embedding = read("model.embed_tokens.weight")
        self.norm = read("model.norm.weight")
        self.head = self.embedding if self.config.tied else read("lm_head.weight")
        self.layers = [_layer(self.config, read, index) for index in range(self.config.layers)]
        self.cos, self.sin = _rope(self.config, device)

    @torch.inference_mode()
    def forward(self, step: StepInput, kv: PagedKV, experts: Experts) -> Tensor:
        """Logits `[S, vocab]` of the rows that want them. With no tokens it still takes part in every expert layer."""
        x = self.embedding[step.tokens]
        cos, sin = self.cos[step.positions], self.sin[step.positions]
        moe = 0
        for index, layer in enumerate(self.layers):
            if step.size:
                x = x + self._attention(
                    index, layer, rms_norm(x, layer.norm1, self.config.norm_eps), cos, sin, step, kv
                )
            h = rms_norm(x, layer.norm2, self.config.norm_eps)
            if layer.router is not None:
                x = x + self._moe(moe, layer.router, h, experts)
                moe += 1
            elif step.size:
                assert layer.gate_up is not None
                assert layer.down is not None
                x = x + mlp(self.arithmetic, h, layer.gate_up, layer.down)
        return self.arithmetic.linear(rms_norm(x[step.sample_rows], self.norm, self.config.norm_eps), self.head)

    def _attention(
        self, index: int, layer: Layer, h: Tensor, cos: Tensor, sin: Tensor, step: StepInput, kv: PagedKV
    ) -> Tensor:
        c = self.config
        rows = self.arithmetic.linear(h, layer.qkv).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = torch.split(rows, [c.heads, c.kv_heads, c.kv_heads], dim=1)
        q = rotate(rms_norm(q, layer.q_norm, c.norm_eps), cos, sin)
        k = rotate(rms_norm(k, layer.k_norm, c.norm_eps), cos, sin)
        kv.write(index, step.kv_slots, k, v)
        grouped = q.reshape(-1, c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        mixed = attention(self.arithmetic, kv, index, grouped, step)
        return self.arithmetic.linear(mixed.reshape(-1, c.heads * c.head_dim), layer.out)

    def _moe(self, moe_layer: int, router: Tensor, h: Tensor, experts: Experts) -> Tensor:
        weights, chosen = softmax_top_k(self.arithmetic.linear(h, router), self.config.top_k, self.config.renormalise)
        outputs = experts(moe_layer, h, chosen)
        mixed = outputs[:, 0] * weights[:, :1]
        for k in range(1, self.config.top_k):  # in top-k order, so that the sum's bits do not depend on the placement
            mixed = mixed + outputs[:, k] * weights[:, k : k + 1]
        return mixed


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square normalisation over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (half-split layout): x `[T, heads, D]`, cos and sin `[T, D/2]`."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def mlp(arithmetic: Arithmetic, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Gated MLP: gate_up `[2I, H]` (gate rows first), down `[H, I]`."""
    gate, up = arithmetic.linear(x, gate_up).chunk(2, dim=-1)
    return arithmetic.linear(arithmetic.silu(gate) * up, down)


def _layer(config: ModelConfig, read: Callable[[str], Tensor], index: int) -> Layer:
    at = f"model.layers.{index}."
    moe = index in config.moe_layers
    return Layer(
        norm1=read(at + "input_layernorm.weight"),
        norm2=read(at + "post_attention_layernorm.weight"),
        qkv=torch.cat([read(f"{at}self_attn.{name}_proj.weight") for name in "qkv"]),
        out=read(at + "self_attn.o_proj.weight"),
        q_norm=read(at + "self_attn.q_norm.weight"),
        k_norm=read(at + "self_attn.k_norm.weight"),
        router=read(at + "mlp.gate.weight") if moe else None,
        gate_up=None if moe else torch.cat([read(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]),
        down=None if moe else read(at + "mlp.down_proj.weight"),
    )


def _rope(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[context, D/2]`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.context, dtype=torch.float32), 1.0 / config.rope_theta**exponents)
    return angles.cos().to(device), angles.sin().to(device)
