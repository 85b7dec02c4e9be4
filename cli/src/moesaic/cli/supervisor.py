"""Keeps a mesh's children alive until it is told to stop, then stops them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from moesaic.cli.children import Child, Hopeless
from moesaic.cli.errors import Stop

ORDER = (("gateway",), ("engine", "planner", "monitor"), ("nats",))
"""Stopped in this order …"""
PATIENCE_S = (1.5, 2.0, 1.0)
"""… each group with this long to end by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """`begin` waits until the mesh is up; `changed` is called then, and whenever a child has been started again."""

    def __init__(
        self,
        children: Sequence[Child],
        begin: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.ready = False
        self._children = children
        self._begin = begin
        self._changed = changed
        self._say = say
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGINT or SIGTERM; a second one kills at once. Raises Stop where a child will not come up."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        tasks = {asyncio.create_task(child.run(lambda: self.ready, self._started)) for child in self._children}
        watch = asyncio.create_task(self._watch())
        tasks.add(watch)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await self._until_stopped(tasks, stopped)
        except Hopeless as error:
            raise Stop(str(error)) from None
        finally:
            watch.cancel()
            await self._down()
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)

    async def _until_stopped(self, tasks: set[asyncio.Task[None]], stopped: asyncio.Task[bool]) -> None:
        while not self._stop.is_set():
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                tasks.discard(task)
                task.result()

    async def _watch(self) -> None:
        await self._begin()
        self.ready = True
        self._changed()

    def _started(self) -> None:
        if self.ready:
            self._changed()

    def _signalled(self) -> None:
        if self._stop.is_set():
            for child in self._children:
                child.kill()
        self._stop.set()

    async def _down(self) -> None:
        self._say("moesaic: stopping")
        for names, patience in zip(ORDER, PATIENCE_S, strict=True):
            group = [child for child in self._children if child.name.partition("-")[0] in names]
            await asyncio.gather(*(child.stop(patience) for child in group))
        self._say("moesaic: stopped")
