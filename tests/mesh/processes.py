"""A whole mesh for tests: a real nats-server and every service as a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import openai
import orjson

from moesaic.shared import subjects
from moesaic.shared.bus import Bus, BusError, Delivery
from moesaic.shared.messages import EngineStatus, Group, Imbalance, Placement, PlacementEvent, decode, encode
from moesaic.shared.nats_bus import connect
from moesaic.shared.placement import State
from natsd import NatsServer

ROOT = Path(__file__).parents[2]
MODEL = "moesaic-tiny"
PATIENCE_S = 60.0
T = TypeVar("T")


class Mesh:
    """Processes by name (`engine-0`, `gateway`, …), and all that is said on the bus."""

    def __init__(self, folder: Path, engines: int, mode: str, extra_slots: int = -1, **flags: str) -> None:
        self.folder = folder
        self.engines = engines
        self.server = NatsServer(folder, max_payload=8 << 20)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.statuses: dict[str, EngineStatus] = {}
        self.events: list[PlacementEvent] = []
        self.windows: list[Imbalance] = []
        self.bus: Bus
        self._news = asyncio.Event()
        common = {"nats": self.server.url}
        self._flags = {
            f"engine-{i}": common
            | {"model": str(ROOT / "models" / MODEL), "engine": f"engine-{i}", "ranks": str(engines), "threads": "1"}
            | {"mode": mode, "status-interval-ms": "200", "load-interval-ms": "200"}
            | {"extra-slots": str(extra_slots)}
            for i in range(engines)
        }
        self._flags["gateway"] = common | {"port": "0", "port-file": str(folder / "gateway.port")}
        self._flags["monitor"] = common | {"interval-ms": "500", "port-file": str(folder / "monitor.port")}
        self._flags["planner"] = common | {name.replace("_", "-"): value for name, value in flags.items()}

    # --- processes -----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        module = f"moesaic.{name.partition('-')[0]}"
        arguments = [part for flag, value in self._flags[name].items() for part in (f"--{flag}", value)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log, stderr=log, start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    async def kill(self, name: str) -> None:
        """As a crash: nothing is said."""
        self.processes[name].kill()
        await asyncio.to_thread(self.processes.pop(name).wait)

    async def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            await asyncio.to_thread(process.wait, 15)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # --- the bus ---------------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        async def status(delivery: Delivery) -> None:
            said = decode(delivery.data, EngineStatus)
            self.statuses[said.source.producer] = said
            self._news.set()

        async def event(delivery: Delivery) -> None:
            self.events.append(decode(delivery.data, PlacementEvent))
            self._news.set()

        async def window(delivery: Delivery) -> None:
            self.windows.append(decode(delivery.data, Imbalance))
            self._news.set()

        await self.bus.subscribe(subjects.status(), status)
        await self.bus.subscribe(subjects.placement(), event)
        await self.bus.subscribe(subjects.imbalance(), window)

    async def until(self, condition: Callable[[], T], what: str = "") -> T:
        """Wait for news until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not (result := condition()):
            assert time.monotonic() < end, f"{what or condition} did not come; {self.statuses}; {self.events[-5:]}"
            self._news.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self._news.wait()
            except TimeoutError:
                continue
        return result

    async def serving(self, generation: int = 1) -> Group:
        """Wait until every engine steps in one generation of at least this number."""

        def formed() -> bool:
            now = {s.generation for s in self.statuses.values()}
            states = {s.state for s in self.statuses.values()}
            return (
                len(self.statuses) == self.engines
                and states == {"serving"}
                and len(now) == 1
                and min(now) >= generation
            )

        await self.until(formed, "a formed group")
        entry = await (await self.bus.bucket(subjects.GROUPS)).get(subjects.token(MODEL))
        assert entry is not None
        assert entry.value is not None
        return decode(entry.value, Group)

    async def place(self, group: Group, state: State) -> int:
        """Store a placement; its epoch."""
        target = Placement(
            group=group.group, generation=group.generation, model_digest=group.model_digest, layers=state
        )
        return await self.put_placement(group.group, encode(target))

    async def put_placement(self, group: str, data: bytes) -> int:
        placements = await self.bus.bucket(subjects.PLACEMENTS, history=16)
        return await placements.put(subjects.token(group), data)

    def committed(self, epoch: int) -> bool:
        """The last instalment of this epoch is live."""
        return any((e.event, e.epoch) == ("committed", epoch) and e.instalment == e.instalments for e in self.events)

    def epochs(self) -> list[int]:
        """Committed epochs, in order."""
        return list(dict.fromkeys(e.epoch for e in self.events if e.event == "committed"))

    # --- the API -----------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{(self.folder / 'gateway.port').read_text().strip()}"

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    async def ready(self) -> None:
        """The gateway answers and knows the model."""
        end = time.monotonic() + PATIENCE_S
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, OSError):
                    pass
                assert time.monotonic() < end, "the gateway did not become ready"
                await asyncio.sleep(0.1)

    async def complete(self, prompt: str, max_tokens: int = 32, **settings: Any) -> str:
        """A greedy completion of exactly `max_tokens` tokens, streamed."""
        text, finish = "", None
        async with self.client() as client:
            stream = await client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=max_tokens, stream=True,
                temperature=settings.pop("temperature", 0.0), extra_body={"ignore_eos": True}, **settings,
            )  # fmt: skip
            async for chunk in stream:
                if chunk.choices:
                    text += chunk.choices[0].text
                    finish = chunk.choices[0].finish_reason or finish
        assert finish == "length", finish
        return text

    async def until_answered(self, service: str, endpoint: str) -> None:
        """Wait until a micro service answers."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                await self.ask(service, endpoint)
            except BusError:
                assert time.monotonic() < end, f"{service} does not answer"
                await asyncio.sleep(0.1)
            else:
                return

    def count(self, event: str) -> int:
        """Events of one kind so far."""
        return sum(e.event == event for e in self.events)

    async def ask(self, service: str, endpoint: str, **body: Any) -> Any:
        """A micro service's answer."""
        return orjson.loads(await self.bus.request(subjects.service(service, endpoint), orjson.dumps(body), timeout=5))


@asynccontextmanager
async def mesh(
    folder: Path, engines: int, mode: str = "exact", *, balancing: bool = False, extra_slots: int = -1, **flags: str
) -> AsyncIterator[Mesh]:
    """A serving mesh; with `balancing`, monitor and planner too."""
    made = Mesh(folder, engines, mode, extra_slots, **flags)
    await asyncio.to_thread(made.server.start)
    try:
        async with connect("test", made.server.url) as made.bus:
            await made.listen()
            names = [
                *(f"engine-{i}" for i in range(engines)),
                "gateway",
                *(["monitor", "planner"] if balancing else []),
            ]
            for name in names:
                made.start(name)
            await made.serving()
            await made.ready()
            yield made
    finally:
        await made.stop()
        await asyncio.to_thread(made.server.stop)


async def together(calls: list[Awaitable[T]]) -> list[T]:
    """All at once."""
    return list(await asyncio.gather(*calls))
