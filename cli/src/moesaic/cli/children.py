"""Child processes that are started again when they die, and that die with this one."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from moesaic.shared.service import BAD_SETTINGS, CANNOT_GO_ON

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

BACKOFF_S = (0.2, 5.0)
"""First and longest pause before a start."""
STEADY_S = 30.0
"""A child that lived this long starts again with the shortest pause."""
YOUNG_S = 10.0
YOUNG_DEATHS = 3
"""So many deaths in a row, each within YOUNG_S, are no accident."""


class Hopeless(Exception):
    """A child that will not come up; the text is why, as far as its log says."""


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One service. `run` keeps it alive until `stop`."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, tell: Callable[[str], None]) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self.pid: int | None = None
        self.starts = 0
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._gone = asyncio.Event()

    async def run(self, up: Callable[[], bool], started: Callable[[], None]) -> None:
        """Start, and start again; `up` tells whether the mesh was up already. Raises Hopeless."""
        pause, young = BACKOFF_S[0], 0
        while not self._stopping:
            began = time.monotonic()
            status = await self._live(started)
            if self._stopping:
                break
            lived = time.monotonic() - began
            reason = last_words(self.log)
            young = young + 1 if lived < YOUNG_S else 0
            if not up() and (status in {BAD_SETTINGS, CANNOT_GO_ON} or young >= YOUNG_DEATHS):
                raise Hopeless(f"{self.name}: {reason}")
            self._tell(f"{self.name} died ({_ending(status)}: {reason}); starting it again")
            if lived > STEADY_S:
                pause = BACKOFF_S[0]
            await asyncio.sleep(pause)
            pause = min(BACKOFF_S[1], pause * 2)

    async def _live(self, started: Callable[[], None]) -> int:
        self._gone.clear()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # one call of libc, before any thread of the child
            )
        if self._stopping:  # while it was being started
            self._process.kill()
        self.pid = self._process.pid
        self.starts += 1
        started()
        try:
            return await self._process.wait()
        finally:
            self.pid = None
            self._gone.set()

    async def stop(self, patience_s: float) -> None:
        """TERM, then KILL after a while."""
        self._stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(patience_s):
                await self._gone.wait()
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        """At once."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def last_words(log: Path) -> str:
    """The reason for an exit: of the last error that the end of a log tells, else its last line."""
    try:
        tail = log.read_bytes()[-8192:].decode("utf-8", "replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    errors = [said for said in map(_said, lines) if said.get("level") in {"error", "critical"}]
    if errors:
        return str(errors[-1].get("reason") or errors[-1].get("event"))[:300]
    return lines[-1][:300] if lines else "nothing in its log"


def _said(line: str) -> dict[str, Any]:
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def rotate(log: Path) -> None:
    """Begin a log anew, keeping the one before."""
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
