"""A background thread that makes instalments ready: works out the path, fills spare slots.

It never touches a live slot and never calls torch.distributed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Cancelled(Exception):
    """The job is no longer wanted."""


class Allowance:
    """Bytes the background may write: so many per step while there is work, without limit while the group is parked."""

    def __init__(self, per_step: int) -> None:
        self._per_step = per_step
        self._left = 0
        self._open = True
        self._closed = False
        self._changed = threading.Condition()

    def step(self) -> None:
        """A step begins: at most `per_step` bytes until the next."""
        with self._changed:
            self._open = False
            self._left = min(self._per_step, self._left + self._per_step)
            self._changed.notify_all()

    def idle(self) -> None:
        """No step runs: no limit."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits gives up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def spend(self, count: int, cancelled: Callable[[], bool]) -> None:
        """Wait until `count` bytes may be written. Raises Cancelled."""
        with self._changed:
            # a piece larger than what is left is let through, and paid with the next steps' allowance
            self._changed.wait_for(lambda: self._closed or cancelled() or self._open or self._left > 0)
            if self._closed or cancelled():
                raise Cancelled
            if not self._open:
                self._left -= count

    def wake(self) -> None:
        """Let waiters look whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()


class Background:
    """Runs jobs one after the other in a daemon thread. An error that a job does not handle ends it and is told."""

    def __init__(self, name: str, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def finish(self) -> None:
        """Wait until every job so far is done."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def close(self) -> None:
        """End after the jobs queued so far."""
        self._jobs.put(None)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001  # the thread's rim: balancing must never stop in silence
                self._failed(f"staging: {type(error).__name__}: {error}")
