"""The decoder of one process with its experts at hand: what the oracle is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.engine.counters import Counters
from moesaic.engine.model.arithmetic import by_name
from moesaic.engine.model.attention import PagedKV
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.decoder import Decoder, Experts
from moesaic.engine.model.step import StepInput, lay_out
from moesaic.engine.native.experts import PlacedExperts
from moesaic.engine.native.fabric import Solo
from moesaic.engine.native.slots import LayerTable, SlotPool
from moesaic.engine.native.weights import ExpertSource
from moesaic.shared.placement import in_order

CPU = torch.device("cpu")
BLOCK = 8


class LocalModel:
    """Logits of token sequences, in chunks, with paged KV."""

    def __init__(self, checkpoint: Checkpoint, mode: str, blocks: int = 64) -> None:
        config = checkpoint.config
        self.checkpoint = checkpoint
        self.arithmetic = by_name(mode)
        self.decoder = Decoder(checkpoint, self.arithmetic, torch.float32, CPU)
        self.kv = PagedKV(config.layers, blocks * BLOCK, config.kv_heads, config.head_dim, torch.float32, CPU)
        layers, experts = len(config.moe_layers), config.experts
        self.pool = SlotPool(config, layers * experts, torch.float32, CPU)
        self.counters = Counters(layers, experts)
        source, self.tables = ExpertSource(checkpoint), []
        for layer, placed in enumerate(in_order(layers, experts, 1)):
            slots = dict(zip(range(experts), self.pool.take(experts), strict=True))
            for expert, slot in slots.items():
                source.load((layer, expert), self.pool, slot, lambda _: None)
            self.tables.append(LayerTable.of(placed, experts, slots))

    def run(self, chunks: list[tuple[list[int], int, list[int]]]) -> Tensor:
        """Chunks (tokens, first position, blocks) in one step; logits of each chunk's last token."""
        step = lay_out([(tokens, first, blocks, False, True) for tokens, first, blocks in chunks], BLOCK, CPU)
        return self.forward(step)

    def forward(self, step: StepInput, watch: Callable[[Experts], Experts] = lambda inner: inner) -> Tensor:
        self.counters.begin("prefill", step.decode.numpy())
        experts = PlacedExperts(Solo(), self.tables, self.pool, self.arithmetic, self.counters, (step.size,))
        logits = self.decoder.forward(step, self.kv, watch(experts))
        self.counters.end()
        return logits
