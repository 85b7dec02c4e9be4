"""A whole mesh on this machine: which processes it has, when it is up, and where it is found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moesaic.cli import embedded, meshfile
from moesaic.cli.children import Child, rotate
from moesaic.cli.readiness import wait_ready

DRAIN_S = "1"
"""Seconds that running requests have at the end: all is over within five."""


@dataclass(frozen=True)
class Wanted:
    """What to serve, where. `nats`: URL of the server; with `own_nats` it is started there."""

    model: str
    engines: int
    mode: str
    engine_args: Sequence[str]
    state: Path
    nats: str
    own_nats: bool
    api: str
    monitor: str


class LocalMesh:
    """The processes of what is wanted. Their logs begin anew."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._say = say
        self._model = ""
        self.children = [self._child(name, argv) for name, argv in commands(wanted)]

    def _child(self, name: str, argv: Sequence[str]) -> Child:
        log = self._wanted.state / "logs" / f"{name}.log"
        rotate(log)
        return Child(name, argv, log, self._say)

    async def begin(self) -> None:
        """Wait until it serves, and say how to use it."""
        began = time.monotonic()
        w = self._wanted
        self._say(f"moesaic: starting {w.model} on {w.engines} engine(s); logs in {w.state / 'logs'}")
        self._model = await wait_ready(w.nats, w.api, w.monitor, w.engines, self._engine_pids, self._say)
        self._say(welcome(w, self._model, time.monotonic() - began))

    def _engine_pids(self) -> set[int | None]:
        return {child.pid for child in self.children if child.name.startswith("engine-")}

    def publish(self) -> None:
        """Write the mesh file: processes have new ids after a restart."""
        pids = {child.name: child.pid for child in self.children if child.pid is not None}
        w = self._wanted
        mesh = meshfile.MeshFile(nats=w.nats, api=w.api, monitor=w.monitor, model=self._model, pids=pids)
        meshfile.write(w.state, mesh)


def commands(wanted: Wanted) -> list[tuple[str, list[str]]]:
    """Name and command line of every process, in the order of their start. Writes the config file of an own NATS."""
    common = ["--nats", wanted.nats]
    cores = len(os.sched_getaffinity(0))
    each = [
        *("--model", wanted.model, "--ranks", str(wanted.engines), "--mode", wanted.mode, "--drain-s", DRAIN_S),
        *("--threads", str(max(1, cores // wanted.engines))),
        *wanted.engine_args,
    ]
    found = []
    if wanted.own_nats:
        config = embedded.write_config(wanted.state, _port(wanted.nats))
        found.append(("nats", [str(embedded.binary()), "--config", str(config)]))
    model = Path(wanted.model).absolute().name
    for rank in range(wanted.engines):  # on a NATS server of others no two meshes' engines may have one name
        engine = f"{model}-{rank}"
        found.append((f"engine-{rank}", _service("engine", [*common, "--engine", engine, *each])))
    found.append(("monitor", _service("monitor", [*common, "--port", str(_port(wanted.monitor))])))
    found.append(("planner", _service("planner", common)))
    gateway = [*common, "--port", str(_port(wanted.api)), "--drain-s", DRAIN_S]
    found.append(("gateway", _service("gateway", gateway)))
    return found


def _service(module: str, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", f"moesaic.{module}", *arguments]


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def welcome(wanted: Wanted, model: str, seconds: float) -> str:
    """What to do with a mesh that is up."""
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"def fib(n):"}}],"stream":true}}'
    return f"""\
moesaic: ready after {seconds:.1f} s

  API      {wanted.api}/v1
  monitor  {wanted.monitor}/state (JSON), {wanted.monitor}/metrics (Prometheus)
  NATS     {wanted.nats}  (nats sub 'moesaic.v1.>')
  logs     {wanted.state / "logs"}

  curl -N {wanted.api}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

  moesaic status     what is where     (.venv/bin/moesaic, or activate .venv)
  moesaic load       put load on it
  Ctrl-C             stop everything
"""
