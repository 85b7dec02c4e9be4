"""A NATS micro service, for either bus: each request in a task of its own, and ping, info and stats as NATS defines them.

The protocol is ADR-32 of the NATS architecture decisions, so `nats micro ls` and `nats micro stats` work.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from moesaic.shared import log, names, subjects
from moesaic.shared.bus import Endpoint, ServiceError

QUEUE = "q"
"""Queue group of the endpoints: of several instances one answers."""

Reply = Callable[[bytes | ServiceError], Awaitable[None]]
Take = Callable[[str, bytes, Reply], Awaitable[None]]
"""Takes a request: subject, data, where the answer goes."""


@dataclass
class Tally:
    """What an endpoint did since its start; times in nanoseconds."""

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    spent: int = 0

    def as_stats(self) -> dict[str, object]:
        """As the protocol names it."""
        return {
            "num_requests": self.requests,
            "num_errors": self.errors,
            "last_error": self.last_error,
            "processing_time": self.spent,
            "average_processing_time": self.spent // max(1, self.requests),
        }


class MicroService:
    """What a micro service listens to and how it answers; the bus does the listening."""

    def __init__(self, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]) -> None:
        names.check_service(name)
        self._name = name
        self._identity = {"name": name, "id": secrets.token_hex(8), "version": version, "metadata": {}}
        self._description = description
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._endpoints = dict(endpoints)
        self._tallies = {endpoint: Tally() for endpoint in endpoints}
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[tuple[str, str, Take]]:
        """What to subscribe to: subject, queue group, taker."""
        found: list[tuple[str, str, Take]] = [
            (subjects.service(self._name, endpoint), QUEUE, self._taker(endpoint)) for endpoint in self._endpoints
        ]
        for verb in ("PING", "INFO", "STATS"):
            for tail in ("", f".{self._name}", f".{self._name}.{self._identity['id']}"):
                found += [(f"$SRV.{verb}{tail}", "", self._describe)]
        return found

    async def close(self) -> None:
        """End the requests that are being answered."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _taker(self, endpoint: str) -> Take:
        async def take(_: str, data: bytes, reply: Reply) -> None:
            task = asyncio.create_task(self._answer(endpoint, data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return take

    async def _answer(self, endpoint: str, data: bytes, reply: Reply) -> None:
        begin = time.monotonic_ns()
        tally = self._tallies[endpoint]
        answer: bytes | ServiceError
        try:
            answer = await self._endpoints[endpoint](data)
        except ServiceError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - foreign code: the caller is told no details, the log has them
            log.get("bus").error("an endpoint failed", service=self._name, endpoint=endpoint, exc_info=error)
            answer = ServiceError(500, "internal error")
        tally.requests += 1
        tally.spent += time.monotonic_ns() - begin
        if isinstance(answer, ServiceError):
            tally.errors += 1
            tally.last_error = f"{answer.code}:{answer.message}"
        await reply(answer)

    async def _describe(self, subject: str, _: bytes, reply: Reply) -> None:
        verb = subject.split(".")[1].lower()
        body: dict[str, object] = {"type": f"io.nats.micro.v1.{verb}_response", **self._identity}
        if verb == "info":
            body["description"] = self._description
        if verb == "stats":
            body["started"] = self._started
        if verb != "ping":
            body["endpoints"] = [self._described(endpoint, verb) for endpoint in self._endpoints]
        await reply(json.dumps(body).encode())

    def _described(self, endpoint: str, verb: str) -> dict[str, object]:
        known: dict[str, object] = {
            "name": endpoint,
            "subject": subjects.service(self._name, endpoint),
            "queue_group": QUEUE,
        }
        return known | (self._tallies[endpoint].as_stats() if verb == "stats" else {"metadata": {}})
