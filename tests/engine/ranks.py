"""Engine processes without a bus: each runs the native backend, told over a pipe what to do, telling what happens."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, cast

from moesaic.engine.backend import LoadSnapshot, ModelSpec, Output, PlacementReport
from moesaic.engine.config import EngineConfig
from moesaic.shared.messages import Generate, Group, Member, Placement, Sampling

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models" / "moesaic-tiny"
PATIENCE_S = 90.0


class _Teller:
    """`Events` into a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def outputs(self, outputs: Sequence[Output]) -> None:
        self._pipe.send(("outputs", list(outputs)))

    def joined(self, generation: int) -> None:
        self._pipe.send(("joined", generation))

    def lost(self, generation: int, reason: str) -> None:
        self._pipe.send(("lost", (generation, reason)))

    def placement(self, report: PlacementReport) -> None:
        self._pipe.send(("placement", report))

    def failed(self, reason: str) -> None:
        self._pipe.send(("failed", reason))


def _process(pipe: Connection, config: EngineConfig) -> None:
    from moesaic.engine.native.backend import NativeBackend

    backend = NativeBackend(config)
    backend.start(_Teller(pipe))
    pipe.send(("spec", backend.spec))
    while True:
        name, arguments = pipe.recv()
        if name == "close":
            backend.close()
            return
        answer = getattr(backend, name)(*arguments)
        if name in {"rendezvous", "submit", "load", "status"}:
            pipe.send((name, answer))


class Rank:
    """One process."""

    def __init__(self, config: EngineConfig) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_process, args=(theirs, config), daemon=True)
        self.process.start()
        theirs.close()
        self.spec: ModelSpec | None = None

    def tell(self, name: str, *arguments: Any) -> None:
        self.pipe.send((name, arguments))


class Ranks:
    """A group of `n` ranks. Everything they tell is kept in `heard` as (rank, kind, value)."""

    def __init__(self, n: int, **settings: Any) -> None:
        settings.setdefault("model", str(TINY))
        self._settings = {"peer_timeout_s": 10.0} | settings | {"ranks": n, "threads": 1}
        self.ranks = [self._start(i) for i in range(n)]
        self.heard: list[tuple[int, str, Any]] = []
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, Output] = {}
        self.group: Group | None = None

    def _start(self, i: int) -> Rank:
        return Rank(EngineConfig(engine=f"engine-{i}", **self._settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process.is_alive():
                rank.tell("close")
        for rank in self.ranks:
            rank.process.join(15)
            rank.process.kill()
            rank.pipe.close()

    # --- listening ---------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float = 1.0) -> None:
        """Take in what was told."""
        pipes = {rank.pipe: i for i, rank in enumerate(self.ranks) if rank.process.is_alive() or rank.pipe.poll()}
        for pipe in cast("list[Connection]", wait(list(pipes), timeout_s)):
            try:
                kind, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                continue
            self._take(pipes[pipe], kind, value)

    def _take(self, rank: int, kind: str, value: Any) -> None:
        self.heard.append((rank, kind, value))
        if kind == "spec":
            self.ranks[rank].spec = value
        assert kind != "failed", value
        if kind == "outputs":
            for output in value:
                have = self.tokens.setdefault(output.request, [])
                del have[output.from_index :]
                have.extend(output.tokens)
                if output.finish or output.error:
                    self.ended[output.request] = output

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Listen until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"{what or condition} did not come; heard {self.heard[-5:]}"
            self.pump()

    def ask(self, rank: int, name: str, *arguments: Any) -> Any:
        """A method that answers."""
        seen = len(self.heard)
        self.ranks[rank].tell(name, *arguments)

        def answer() -> list[Any]:
            return [v for r, kind, v in self.heard[seen:] if (r, kind) == (rank, name)]

        self.until(lambda: bool(answer()), name)
        return answer()[0]

    # --- doing -----------------------------------------------------------------------------------------------------------

    def form(self, generation: int = 1, epoch: int = 0, placement: Placement | None = None) -> Group:
        """Make the ranks a generation and wait until all step."""
        self.until(lambda: all(rank.spec is not None for rank in self.ranks), "start")
        specs = [rank.spec for rank in self.ranks if rank.spec is not None]
        group = Group(
            group="g",
            generation=generation,
            size=len(specs),
            model="tiny",
            model_digest=specs[0].digest,
            layers=specs[0].layers,
            experts=specs[0].experts,
            top_k=specs[0].top_k,
            slot_bytes=specs[0].slot_bytes,
            members=tuple(
                Member(
                    engine=f"engine-{i}", boot=str(rank.process.pid), node="n", device="cpu", host="127.0.0.1",
                    bell=spec.bell, slots=spec.slots, spare=spec.spare, ready=True,
                )
                for i, (rank, spec) in enumerate(zip(self.ranks, specs, strict=True))
            ),
        )  # fmt: skip
        self.group = group.__class__(**{f: getattr(group, f) for f in group.__struct_fields__} | {"store": "x"})
        store = self.ask(0, "rendezvous", self.group)
        self.group = group.__class__(**{f: getattr(group, f) for f in group.__struct_fields__} | {"store": store})
        for i, rank in enumerate(self.ranks):
            rank.tell("join", self.group, i, epoch, placement)
        self.until(lambda: self.count("joined", generation) == len(self.ranks), "joined")
        return self.group

    def count(self, kind: str, value: Any) -> int:
        return sum((k, v) == (kind, value) for _, k, v in self.heard)

    def reports(self, event: str, rank: int = 0) -> list[PlacementReport]:
        return [v for r, k, v in self.heard if r == rank and k == "placement" and v.event == event]

    def switched(self, epoch: int) -> bool:
        """Whether the last instalment of this epoch is live."""
        return any(r.epoch == epoch and r.instalment == r.instalments for r in self.reports("committed"))

    def submit(self, rank: int, name: str, tokens: Sequence[int], **sampling: Any) -> None:
        sampling.setdefault("max_tokens", 32)
        offset = sampling.pop("output_offset", 0)
        request = Generate(
            request=name, gateway="w", model="tiny", tokens=tuple(tokens), output_offset=offset,
            sampling=Sampling(**sampling),
        )  # fmt: skip
        refusal = self.ask(rank, "submit", request)
        assert refusal is None, refusal

    def finish(self, *names: str) -> None:
        self.until(lambda: all(name in self.ended for name in names), f"end of {names}")

    def offer(self, epoch: int, placement: Placement) -> None:
        for rank in self.ranks:
            if rank.process.is_alive():
                rank.tell("offer", epoch, placement)

    def load(self, rank: int) -> LoadSnapshot:
        snapshot = self.ask(rank, "load")
        assert isinstance(snapshot, LoadSnapshot)
        return snapshot

    def kill(self, rank: int) -> None:
        self.ranks[rank].process.kill()
        self.ranks[rank].process.join()

    def restart(self, rank: int) -> None:
        self.ranks[rank].pipe.close()
        self.ranks[rank] = self._start(rank)
