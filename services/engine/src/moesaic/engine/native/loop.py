"""The step loop: the thread in which a rank obeys, agrees with its peers, computes, and parks."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from moesaic.engine.backend import BackendStatus, Events, Output
from moesaic.engine.devices import Device
from moesaic.engine.native.bell import Bell
from moesaic.engine.native.fabric import Distributed, Fabric, FabricLost, Solo, reach_store
from moesaic.engine.native.records import Decision, GenerationMixed, Record, decide
from moesaic.engine.native.rollout import Rollout
from moesaic.engine.native.staging import Allowance
from moesaic.engine.native.worker import Worker
from moesaic.engine.scheduling.request import Chunk, Request
from moesaic.shared.messages import Group, LayerPlacement, Placement, WireError, decode, encode
from moesaic.shared.placement import PlacementError, State, check_state, in_order

MEET_S = 20.0
"""Ranks that are ready meet within this time, or the generation is given up."""
SMOOTHING = 0.1
"""Weight of the newest step in the moving average of step times."""


class _Start(msgspec.Struct, frozen=True):
    """Where a generation starts; rank 0 says it to the others."""

    epoch: int
    layers: tuple[LayerPlacement, ...]


class Loop:
    """Everything here runs in one thread, but for `status`."""

    def __init__(
        self,
        worker: Worker,
        bell: Bell,
        commands: queue.SimpleQueue[Callable[[Loop], None]],
        events: Events,
        device: Device,
    ) -> None:
        self._worker = worker
        self._bell = bell
        self._commands = commands
        self._events = events
        self._device = device
        self._allowance = Allowance(worker.config.stage_kb_per_step << 10)
        self._rollout = Rollout(worker.pool, worker.source, self._allowance, bell.wake, events.placement, events.failed)
        self._fabric: Fabric | None = None
        self._generation = 0
        self._leaving = False
        self._stopped = False
        self._parks = 0
        self._steps = 0
        self._step_ms = 0.0

    def run(self) -> None:
        """Until `stop`."""
        try:
            while self._obey():
                if self._fabric is None:
                    self._bell.wait(None)
                else:
                    self._turn(self._fabric)
        except Exception as error:  # noqa: BLE001  # the thread's rim: whatever it is, the service must hear of it
            self._events.failed(f"{type(error).__name__}: {error}")
        finally:
            self._end()
            self._rollout.close()

    # --- commands ------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._worker.scheduler.add(request)

    def remove(self, request_id: str) -> None:
        """Stop a request."""
        self._worker.scheduler.remove(request_id)

    def fail_all(self, error: WireError) -> None:
        """End every request with an error."""
        scheduler = self._worker.scheduler
        self._fail([*scheduler.running, *scheduler.waiting], error)

    def offer(self, epoch: int, placement: Placement) -> None:
        """A target placement."""
        self._rollout.offer(epoch, placement)

    def leave(self) -> None:
        """Tell the others with the next record."""
        if self._fabric is None:
            self._events.lost(self._generation, "left")
        self._leaving = True

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True

    def join(self, group: Group, rank: int, epoch: int, placement: Placement | None, store: Store | None) -> None:
        """Enter a formed generation."""
        self._end()
        self._generation = group.generation
        self._parks = 0
        self._leaving = False
        try:
            self._fabric = self._meet(group, rank, _start(group, epoch, placement), store)
        except FabricLost as error:
            self._lose(str(error))
            return
        live = self._rollout.live
        self._worker.counters.placed(group.generation, live.epoch, live.instalment)
        self._events.joined(group.generation)

    def _meet(self, group: Group, rank: int, start: _Start, store: Store | None) -> Fabric:
        if group.size == 1:
            self._rollout.enter(group, rank, start.epoch, start.layers)
            return Solo()
        try:
            store = store or reach_store(group.store, MEET_S)
            if rank == 0:
                store.set("start", encode(start).decode())
            start = decode(store.get("start"), _Start)
            self._rollout.enter(group, rank, start.epoch, start.layers)
            store.set(f"loaded/{rank}", "")
            self._await_loaded(store, group.size)
        except RuntimeError as error:
            raise FabricLost(f"the rendezvous broke: {str(error)[:200]}") from error
        fabric = Distributed(store, rank, group.size, self._device, MEET_S, self._worker.config.peer_timeout_s)
        self._fabric = fabric
        self._bell.connect(group.generation, rank, [(m.host, m.bell) for m in group.members], MEET_S)
        fabric.barrier()
        return fabric

    def _await_loaded(self, store: Store, ranks: int) -> None:
        """Loading may take long; a newer command ends the wait."""
        for rank in range(ranks):
            while self._commands.empty():
                try:
                    store.wait([f"loaded/{rank}"], timedelta(seconds=0.2))
                    break
                except DistStoreError:
                    continue
            else:
                raise FabricLost("called away while the ranks load")

    # --- steps -------------------------------------------------------------------------------------------------------

    def _obey(self) -> bool:
        """Carry out what was asked for; whether to go on."""
        while not self._commands.empty():
            self._commands.get()(self)
        return not self._stopped

    def _turn(self, fabric: Fabric) -> None:
        try:
            self._step(fabric)
        except (FabricLost, GenerationMixed) as error:
            self._lose(str(error))

    def _step(self, fabric: Fabric) -> None:
        began = time.perf_counter()
        self._expire()
        chunks = self._worker.scheduler.next()
        decision = decide([Record(*r) for r in fabric.gather_records(self._record(chunks).pack())])
        if decision.leaving:
            self._lose(f"rank {decision.leaving[0]} leaves")
            return
        if decision.commit:
            self._commit()
        if decision.tokens:
            self._compute(chunks, decision, fabric)
            self._steps += 1
            self._step_ms += SMOOTHING * ((time.perf_counter() - began) * 1e3 - self._step_ms)
        elif not decision.commit:
            self._park()

    def _record(self, chunks: list[Chunk]) -> Record:
        decode_tokens = sum(chunk.count for chunk in chunks if chunk.decode)
        epoch, instalment, digest, staged = self._rollout.standing()
        return Record(
            generation=self._generation,
            prefill=sum(chunk.count for chunk in chunks) - decode_tokens,
            decode=decode_tokens,
            epoch=epoch,
            instalment=instalment,
            digest=digest,
            staged=staged,
            leaving=int(self._leaving),
        )

    def _commit(self) -> None:
        self._rollout.commit(self._steps)
        live = self._rollout.live
        self._worker.counters.placed(self._generation, live.epoch, live.instalment)

    def _compute(self, chunks: list[Chunk], decision: Decision, fabric: Fabric) -> None:
        self._allowance.step()
        outputs = self._worker.compute(chunks, decision, fabric, self._rollout.tables)
        if outputs:
            self._events.outputs(outputs)

    def _park(self) -> None:
        """Nobody has anything to do: sleep until somebody has. Every rank parks after the same step."""
        self._allowance.idle()
        self._parks += 1
        if self._bell.wait(self._parks):
            self._bell.ring(self._parks)

    def _expire(self) -> None:
        late = self._worker.scheduler.expired(time.time())
        if late:
            self._fail(late, WireError(code="deadline", message="the request waited longer than its deadline"))

    def _fail(self, requests: list[Request], error: WireError) -> None:
        for request in requests:
            self._worker.scheduler.remove(request.id)
        self._events.outputs([Output(r.id, r.outputs, error=error) for r in requests])

    def _lose(self, reason: str) -> None:
        self._end()
        self._events.lost(self._generation, reason)

    def _end(self) -> None:
        self._rollout.leave()
        self._bell.disconnect()
        if self._fabric is not None:
            self._fabric.close()
            self._fabric = None

    # --- from other threads ----------------------------------------------------------------------------------------------

    def status(self) -> BackendStatus:
        """Figures now; each is right by itself."""
        w, r = self._worker, self._rollout
        return BackendStatus(
            epoch=r.live.epoch,
            instalment=r.live.instalment,
            waiting=len(w.scheduler.waiting),
            running=len(w.scheduler.running),
            kv_blocks_used=w.blocks.used,
            kv_blocks_total=w.blocks.total,
            kv_block_size=w.blocks.size,
            prefix_queries=w.scheduler.prefix_queries,
            prefix_hits=w.scheduler.prefix_hits,
            steps=self._steps,
            step_ms=self._step_ms,
            prompt_tokens=w.prompt_tokens,
            generated_tokens=w.generated_tokens,
            preemptions=w.scheduler.preemptions,
            switches=r.switches,
            switch_stall_ms=r.stall_ms,
            switch_stall_ms_max=r.stall_ms_max,
            staged_bytes=r.staged_bytes,
        )


def _start(group: Group, epoch: int, placement: Placement | None) -> _Start:
    """The stored placement if it fits this group, else the default one under epoch 0."""
    default = _Start(0, in_order(group.layers, group.experts, len(group.members)))
    if placement is None or placement.model_digest != group.model_digest:
        return default
    state: State = placement.layers
    try:
        check_state(state, layers=group.layers, experts=group.experts, ranks=len(group.members), slots=group.budget)
    except PlacementError:
        return default
    return _Start(epoch, state)
