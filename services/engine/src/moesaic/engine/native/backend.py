"""The native backend: commands in, events out; the step loop runs in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch
from torch._C._distributed_c10d import TCPStore

from moesaic.engine import devices
from moesaic.engine.backend import (
    BackendStatus,
    Events,
    LoadSnapshot,
    ModelSpec,
    Refusal,
)
from moesaic.engine.config import EngineConfig
from moesaic.engine.model.checkpoint import Checkpoint
from moesaic.engine.native import fabric
from moesaic.engine.native.bell import Bell
from moesaic.engine.native.loop import MEET_S, Loop
from moesaic.engine.native.worker import Worker
from moesaic.engine.scheduling.request import Request
from moesaic.shared.messages import Generate, Group, Placement, WireError


class NativeBackend:
    """See `Backend`."""

    def __init__(self, config: EngineConfig) -> None:
        threads = 1 if config.mode == "exact" else config.threads  # more may split a sum, and so round differently
        if threads:
            torch.set_num_threads(threads)
        fabric.prepare_environment(config.host)
        self._config = config
        self._device = devices.choose(config.device)
        checkpoint = Checkpoint(config.model)
        self._files = checkpoint.tokenizer_files()
        self._worker = Worker(config, checkpoint, self._device)
        self._bell = Bell(config.host)
        self._commands: queue.SimpleQueue[Callable[[Loop], None]] = queue.SimpleQueue()
        self._store: TCPStore | None = None
        self._loop: Loop | None = None
        self._thread: threading.Thread | None = None

    @property
    def spec(self) -> ModelSpec:
        """See Backend."""
        model, pool = self._worker.model, self._worker.pool
        return ModelSpec(
            digest=self._worker.digest,
            architecture=model.architecture,
            context=self._worker.context,
            vocab=model.vocab,
            layers=len(model.moe_layers),
            experts=model.experts,
            top_k=model.top_k,
            eos_token_ids=model.eos,
            slot_bytes=pool.slot_bytes,
            slots=pool.slots,
            spare=self._config.spare_slots,
            device=self._device.kind,
            bell=self._bell.port,
            files=self._files,
        )

    def start(self, events: Events) -> None:
        """See Backend."""
        self._loop = Loop(self._worker, self._bell, self._commands, events, self._device)
        self._thread = threading.Thread(target=self._loop.run, name="steps", daemon=True)
        self._thread.start()

    def rendezvous(self, group: Group) -> str:
        """See Backend."""
        if group.size == 1:
            return f"{self._config.host}:0"
        self._store = fabric.open_store(self._config.host, MEET_S)
        return f"{self._config.host}:{self._store.port}"

    def join(self, group: Group, rank: int, epoch: int, placement: Placement | None) -> None:
        """See Backend."""
        store = self._store if rank == 0 else None
        self._do(lambda loop: loop.join(group, rank, epoch, placement, store))

    def leave(self) -> None:
        """See Backend."""
        self._do(lambda loop: loop.leave())

    def submit(self, request: Generate) -> Refusal | None:
        """See Backend."""
        refusal = self._worker.refuse(request)
        if refusal is None:
            self._do(lambda loop: loop.add(Request.of(request)))
        return refusal

    def cancel(self, request: str) -> None:
        """See Backend."""
        self._do(lambda loop: loop.remove(request))

    def fail_all(self, error: WireError) -> None:
        """See Backend."""
        self._do(lambda loop: loop.fail_all(error))

    def offer(self, epoch: int, placement: Placement) -> None:
        """See Backend."""
        self._do(lambda loop: loop.offer(epoch, placement))

    def load(self) -> LoadSnapshot:
        """See Backend."""
        return self._worker.counters.snapshot()

    def status(self) -> BackendStatus:
        """See Backend."""
        assert self._loop is not None
        return self._loop.status()

    def close(self) -> None:
        """See Backend."""
        self._do(lambda loop: loop.stop())
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._bell.close()

    def _do(self, command: Callable[[Loop], None]) -> None:
        self._commands.put(command)
        self._bell.wake()
