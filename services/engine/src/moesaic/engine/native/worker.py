"""One rank's model with its scheduler, KV and counters: turns chunks into outputs. Knows nothing of other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moesaic.engine.backend import Output, Refusal
from moesaic.engine.config import EngineConfig
from moesaic.engine.counters import Counters
from moesaic.engine.devices import Device
from moesaic.engine.model.arithmetic import by_name
from moesaic.engine.model.attention import PagedKV
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.model.decoder import Decoder
from moesaic.engine.model.step import lay_out
from moesaic.engine.native.experts import PlacedExperts
from moesaic.engine.native.fabric import Fabric
from moesaic.engine.native.records import Decision
from moesaic.engine.native.sampler import Draw, logprobs, sample
from moesaic.engine.native.slots import LayerTable, SlotPool
from moesaic.engine.native.weights import ExpertSource
from moesaic.engine.scheduling.blocks import Blocks
from moesaic.engine.scheduling.request import Chunk
from moesaic.engine.scheduling.scheduler import Limits, Scheduler
from moesaic.shared.messages import Generate, Sampling, TokenLogprob

KV_BYTES = 2 << 30
"""Default bound of the KV room."""


class Worker:
    """Owned by the step loop; `refuse` only reads and may be called from elsewhere."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, device: Device) -> None:
        self.config = config
        self.model = model = checkpoint.config
        self.digest = checkpoint.digest
        self.device = device.torch
        self.arithmetic = by_name(config.mode)
        self.decoder = Decoder(checkpoint, self.arithmetic, torch.float32, self.device)
        self.pool = SlotPool(model, _slots(config, checkpoint), torch.float32, self.device)
        self.source = ExpertSource(checkpoint)
        self.counters = Counters(len(model.moe_layers), model.experts)
        blocks = _kv_blocks(config, checkpoint)
        self.context = min(model.context, blocks * config.block_size)
        self.blocks = Blocks(blocks, config.block_size)
        self.scheduler = Scheduler(Limits(config.step_tokens, config.max_running, config.max_waiting), self.blocks)
        self.kv = PagedKV(
            model.layers, blocks * config.block_size, model.kv_heads, model.head_dim, torch.float32, self.device
        )
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def refuse(self, request: Generate) -> Refusal | None:
        """Why this request cannot be taken, or None."""
        s = request.sampling
        prompt = len(request.tokens) - request.output_offset
        if request.output_offset < 0 or prompt < 1 or any(not 0 <= t < self.model.vocab for t in request.tokens):
            return Refusal(
                "invalid", f"tokens must be from 0 to {self.model.vocab - 1}, at least one of them a prompt's"
            )
        if s.max_tokens <= request.output_offset or _out_of_range(s):
            return Refusal("invalid", "sampling parameters out of range")
        if prompt + s.max_tokens > self.context:
            return Refusal("too_long", f"{prompt} prompt + {s.max_tokens} output tokens exceed {self.context}")
        if len(self.scheduler.waiting) >= self.config.max_waiting:
            return Refusal("full", f"{self.config.max_waiting} requests are waiting")
        return None

    def compute(
        self, chunks: Sequence[Chunk], decision: Decision, fabric: Fabric, tables: list[LayerTable]
    ) -> list[Output]:
        """One forward pass of this rank's part of a step; new tokens are appended to their requests."""
        step = lay_out(
            [
                (c.request.tokens[c.first : c.first + c.count], c.first, c.request.blocks, c.decode, c.samples)
                for c in chunks
            ],
            self.config.block_size,
            self.device,
        )
        self.counters.begin(decision.phase, step.decode.cpu().numpy())
        experts = PlacedExperts(fabric, tables, self.pool, self.arithmetic, self.counters, decision.sizes)
        logits = self.decoder.forward(step, self.kv, experts)
        self.counters.end()
        sampling = [chunk for chunk in chunks if chunk.samples]
        tokens = self._sample(logits, sampling)
        outputs = [self._output(chunk, t, row) for chunk, t, row in zip(sampling, tokens, logits, strict=True)]
        new = {id(chunk): (token,) for chunk, token in zip(sampling, tokens, strict=True)}
        self.scheduler.advance(chunks, [new.get(id(chunk), ()) for chunk in chunks])
        self.prompt_tokens += sum(chunk.count for chunk in chunks if not chunk.decode)
        self.generated_tokens += len(tokens)
        for output in outputs:
            if output.finish:
                self.scheduler.remove(output.request)
        return outputs

    def _sample(self, logits: Tensor, chunks: Sequence[Chunk]) -> list[int]:
        if not chunks:
            return []
        return sample(logits, [Draw(c.request.sampling, c.request.outputs) for c in chunks], self.model.eos)

    def _output(self, chunk: Chunk, token: int, row: Tensor) -> Output:
        request, s = chunk.request, chunk.request.sampling
        wanted: tuple[TokenLogprob, ...] | None = None
        if s.logprobs is not None:
            wanted = (logprobs(row, token, s.logprobs),)
        return Output(
            request=request.id,
            from_index=request.outputs,
            tokens=(token,),
            logprobs=wanted,
            finish=self._finish(s, request.outputs + 1, len(request.tokens) + 1, token),
            cached_tokens=request.cached_tokens,
        )

    def _finish(self, s: Sampling, outputs: int, length: int, token: int) -> str | None:
        ends = token in s.stop_token_ids or (token in self.model.eos and not s.ignore_eos)
        if ends and outputs > s.min_tokens:
            return "stop"
        return "length" if outputs >= s.max_tokens or length >= self.context else None


def _out_of_range(s: Sampling) -> bool:
    return not (s.temperature >= 0 and 0 < s.top_p <= 1 and s.top_k >= 0 and 0 <= s.min_p <= 1 and s.min_tokens >= 0)


def _slots(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """Slots of the pool: this rank's part of all experts, extra ones for replicas, spare ones for moves."""
    experts = len(checkpoint.config.moe_layers) * checkpoint.config.experts
    # in the default placement a rank may hold one expert more per layer than the mean
    share = len(checkpoint.config.moe_layers) * -(-checkpoint.config.experts // config.ranks)
    extra = config.extra_slots if config.extra_slots >= 0 else -(-experts // (8 * config.ranks))
    return share + (extra if config.ranks > 1 else 0) + config.spare_slots


def _kv_blocks(config: EngineConfig, checkpoint: Checkpoint) -> int:
    model = checkpoint.config
    tokens = config.kv_tokens
    if not tokens:
        token_bytes = 2 * 4 * model.layers * model.kv_heads * model.head_dim
        tokens = max(config.block_size, min(8 * model.context, KV_BYTES // token_bytes))
    return -(-tokens // config.block_size)
