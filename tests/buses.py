"""Both buses behind one face, so that one suite holds them to the same page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeVar

from moesaic.shared.bus import Bus, Delivery
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.nats_bus import connect
from natsd import NatsServer

T = TypeVar("T")

SECONDS = 20
"""A bound for what should take milliseconds."""


class Mesh(Protocol):
    """A place where buses meet, with outages on demand."""

    async def bus(self) -> Bus: ...

    async def down(self) -> None: ...

    async def up(self) -> None: ...


class MemoryMesh:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    async def bus(self) -> Bus:
        return MemoryBus(self.broker)

    async def down(self) -> None:
        self.broker.down()

    async def up(self) -> None:
        self.broker.up()


class NatsMesh:
    def __init__(self, server: NatsServer, stack: AsyncExitStack) -> None:
        self.server = server
        self.buses: list[Bus] = []
        self._stack = stack

    async def bus(self) -> Bus:
        self.buses.append(await self._stack.enter_async_context(connect("test", self.server.url)))
        return self.buses[-1]

    async def down(self) -> None:
        await asyncio.to_thread(self.server.stop)
        await until(lambda: not any(bus.connected for bus in self.buses))

    async def up(self) -> None:
        back = [reconnection(bus) for bus in self.buses]
        await asyncio.to_thread(self.server.start)
        for event in back:
            await soon(event.wait())


@asynccontextmanager
async def nats_mesh(server: NatsServer) -> AsyncIterator[NatsMesh]:
    async with AsyncExitStack() as stack:
        yield NatsMesh(server, stack)


class Collector:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    async def __call__(self, delivery: Delivery) -> None:
        self.received.put_nowait(delivery.data)

    async def next(self) -> bytes:
        return await soon(self.received.get())


def reconnection(bus: Bus) -> asyncio.Event:
    event = asyncio.Event()
    bus.on_reconnect(event.set)
    return event


async def soon(work: Awaitable[T]) -> T:
    async with asyncio.timeout(SECONDS):
        return await work


async def until(holds: Callable[[], bool]) -> None:
    """For what has no event of its own: a counter, a flag."""

    async def look() -> bool:
        return holds()

    await eventually(look, lambda held: held)


async def eventually(look: Callable[[], Awaitable[T]], enough: Callable[[T], bool]) -> T:
    """What `look` sees once it is `enough`."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    seen = await look()
    while not enough(seen) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
        seen = await look()
    assert enough(seen), seen
    return seen
