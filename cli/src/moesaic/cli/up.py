"""`moesaic up`: a whole mesh on this machine, supervised until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moesaic.cli import meshfile, ports
from moesaic.cli.errors import Stop
from moesaic.cli.local import LocalMesh, Wanted
from moesaic.cli.supervisor import Supervisor
from moesaic.shared import log

HOST = "127.0.0.1"
PORT = 8000
ANY_PORT = 0
MODEL = "models/moesaic-tiny"
DISK_BYTES = 1 << 30

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
    with _alone(state), ExitStack() as claims:
        api, monitor, nats = (
            claims.enter_context(ports.claim(HOST, wanted, PORT)).port for wanted in (args.port, ANY_PORT, ANY_PORT)
        )
        wanted = Wanted(
            model=args.model,
            engines=args.engines,
            mode=args.mode,
            engine_args=_split(args.engine_arg),
            state=state,
            nats=args.nats or f"nats://{HOST}:{nats}",
            own_nats=not args.nats,
            api=f"http://{HOST}:{api}",
            monitor=f"http://{HOST}:{monitor}",
        )
        meshfile.remove(state)  # of a mesh that was killed
        try:
            asyncio.run(_supervise(wanted))
        finally:
            meshfile.remove(state)
    return 0


async def _supervise(wanted: Wanted) -> None:
    mesh = LocalMesh(wanted, _say)
    try:
        await Supervisor(mesh.children, mesh.begin, mesh.publish, _say).run()
    except Stop as error:
        raise Stop(f"{error} (logs: {wanted.state / 'logs'})") from None


def _split(texts: list[str]) -> list[str]:
    try:
        return [part for text in texts for part in shlex.split(text)]
    except ValueError as error:
        raise Stop(f"--engine-arg {' '.join(texts)}: {error}") from None


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
        (state / "lock").touch()
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
