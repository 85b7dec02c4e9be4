"""`moesaic up`: a whole mesh on this machine, supervised until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moesaic.cli import embedded, meshfile, ports
from moesaic.cli.children import Child, Hopeless, rotate
from moesaic.cli.errors import Stop
from moesaic.cli.readiness import wait_ready
from moesaic.shared import log

HOST = "127.0.0.1"
PORT = 8000
MODEL = "models/moesaic-tiny"
DISK_BYTES = 1 << 30
ORDER = (("gateway",), ("engine", "planner", "monitor"), ("nats",))
"""Stopped in this order …"""
PATIENCE_S = (1.5, 2.0, 1.0)
"""… each group with this long to end by itself."""

EXAMPLES = """\
examples:
  moesaic up                                   the demo model on two engines
  moesaic up --model ~/models/Qwen3-30B-A3B --engines 4 --port 9000
  moesaic up --nats nats://10.0.0.5:4222       on a NATS server that is there already (JetStream on)
  moesaic up --engine-arg "--extra-slots 32"   settings of every engine (moesaic-engine --help)
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line."""
    parse = commands.add_parser(
        "up",
        help="start a mesh on this machine and keep it running",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("--model", default=MODEL, help=f"checkpoint folder (default {MODEL})")
    parse.add_argument("--engines", type=int, default=2, help="engines, one rank each (default 2)")
    parse.add_argument("--port", type=int, help=f"port of the API; 0: any (default {PORT}, or the next free one)")
    parse.add_argument("--nats", help="URL of a running NATS server (default: an own one)")
    parse.add_argument("--state", default=meshfile.DEFAULT_STATE, help="folder of state and logs (default .moesaic)")
    parse.add_argument("--mode", choices=("fast", "exact"), default="fast", help="arithmetic (default fast)")
    parse.add_argument("--engine-arg", action="append", default=[], help="more settings for every engine")
    parse.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Until Ctrl-C. The exit status."""
    log.configure("up", "error")
    state = _check(args)
    with _alone(state):
        port = ports.choose(HOST, args.port, PORT)
        return asyncio.run(_Up(args, state, port).run())


def _check(args: argparse.Namespace) -> Path:
    """Everything that can be known to be wrong before anything starts."""
    model = Path(args.model)
    if not model.is_dir():
        raise Stop(f"no model at {model}: give --model (make up MODEL=…) a checkpoint folder in Hugging Face layout")
    if not (model / "config.json").is_file():
        raise Stop(f"{model} has no config.json: it is no checkpoint folder in Hugging Face layout")
    if args.engines < 1:
        raise Stop("--engines must be at least 1")
    state = Path(args.state).resolve()
    try:
        (state / "logs").mkdir(parents=True, exist_ok=True)
        (state / "nats.conf").touch()
    except OSError as error:
        raise Stop(
            f"the state folder {state} cannot be written ({error.strerror}): give another with --state"
        ) from error
    free = shutil.disk_usage(state).free
    if free < DISK_BYTES:
        raise Stop(f"only {free >> 20} MiB are free at {state}, 1024 are needed: make room, or give --state elsewhere")
    return state


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One mesh per state folder."""
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Stop(f"a mesh with the state folder {state} is running: stop it, or give another --state") from None
        yield


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _Up:
    def __init__(self, args: argparse.Namespace, state: Path, port: int) -> None:
        self.args = args
        self.state = state
        self.model = Path(args.model).resolve().name
        self.api = f"http://{HOST}:{port}"
        self.nats = args.nats or f"nats://{HOST}:{ports.any_free(HOST)}"
        self.monitor = f"http://{HOST}:{ports.any_free(HOST)}"
        self.ready = False
        self.children = {c.name: c for c in self._children(port)}
        self._stop = asyncio.Event()
        self._signals = 0

    def _children(self, port: int) -> list[Child]:
        common = ["--nats", self.nats]
        threads = max(1, (os.cpu_count() or 1) // self.args.engines)
        more = [part for text in self.args.engine_arg for part in shlex.split(text)]
        found = []
        if not self.args.nats:
            config = embedded.write_config(self.state, int(self.nats.rpartition(":")[2]))
            found.append(self._child("nats", [str(embedded.binary()), "--config", str(config)]))
        for rank in range(self.args.engines):
            engine = ["--model", self.args.model, "--engine", f"engine-{rank}", "--ranks", str(self.args.engines)]
            settings = ["--mode", self.args.mode, "--threads", str(threads), "--drain-s", "1", *more]
            found.append(self._service(f"engine-{rank}", [*common, *engine, *settings]))
        found.append(self._service("monitor", [*common, "--port", self.monitor.rpartition(":")[2]]))
        found.append(self._service("planner", common))
        found.append(self._service("gateway", [*common, "--port", str(port), "--drain-s", "1"]))
        return found

    def _service(self, name: str, arguments: list[str]) -> Child:
        return self._child(name, [sys.executable, "-m", f"moesaic.{name.partition('-')[0]}", *arguments])

    def _child(self, name: str, argv: list[str]) -> Child:
        log = self.state / "logs" / f"{name}.log"
        rotate(log)
        return Child(name, argv, log, _say)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signal)
        lives = [asyncio.create_task(c.run(lambda: self.ready, self._write)) for c in self.children.values()]
        watch = asyncio.create_task(self._watch())
        tasks = {*lives, watch}
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set():
                done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
                for task in done & tasks:
                    tasks.discard(task)
                    task.result()
        except Hopeless as error:
            raise Stop(f"{error}\nlogs: {self.state / 'logs'}") from None
        finally:
            watch.cancel()
            await asyncio.wait([watch], timeout=1.0)
            await self._down()
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            meshfile.remove(self.state)
        return 0

    def _signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            for child in self.children.values():
                child.kill()

    async def _watch(self) -> None:
        began = time.monotonic()
        _say(f"moesaic: starting {self.model} on {self.args.engines} engine(s); logs in {self.state / 'logs'}")
        await wait_ready(self.nats, self.api, self.monitor, self.model, self.args.engines, _say)
        self.ready = True
        self._write()
        _say(_welcome(self.api, self.monitor, self.nats, self.model, time.monotonic() - began))

    def _write(self) -> None:
        """Processes have new ids after a restart."""
        if self.ready:
            pids = {name: child.pid for name, child in self.children.items() if child.pid is not None}
            mesh = meshfile.MeshFile(nats=self.nats, api=self.api, monitor=self.monitor, model=self.model, pids=pids)
            meshfile.write(self.state, mesh)

    async def _down(self) -> None:
        _say("moesaic: stopping")
        for names, patience in zip(ORDER, PATIENCE_S, strict=True):
            group = [c for c in self.children.values() if c.name.partition("-")[0] in names]
            await asyncio.gather(*(child.stop(patience) for child in group))
        _say("moesaic: stopped")


def _welcome(api: str, monitor: str, nats: str, model: str, seconds: float) -> str:
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"def fib(n):"}}],"stream":true}}'
    return f"""\
moesaic: ready after {seconds:.1f} s

  API      {api}/v1
  monitor  {monitor}/state (JSON), {monitor}/metrics (Prometheus)
  NATS     {nats}  (nats sub 'moesaic.v1.>')

  curl -N {api}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

  moesaic status     what is where     (.venv/bin/moesaic, or activate .venv)
  moesaic load       put load on it
  Ctrl-C             stop everything
"""
