"""The bus as the services see it: publish/subscribe, request/reply, KV with compare-and-set, files, micro services.

`nats_bus` is the real one, `memory_bus` the one for tests; one contract suite holds both to this page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class BusError(Exception):
    """Base of what a bus raises."""


class BusDown(BusError):
    """Not connected now. The bus goes on reconnecting."""


class NoResponders(BusError):
    """Nobody listens on that subject."""


class RequestTimeout(BusError):
    """Somebody may have listened, nobody answered in time."""


class TooLarge(BusError):
    """The message exceeds what the server takes; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"message of {size} bytes exceeds the bus limit of {limit} bytes")
        self.size = size
        self.limit = limit


class Conflict(BusError):
    """Compare-and-set failed: the key has changed."""


@dataclass(frozen=True)
class Delivery:
    """A received message. `respond` answers a request (and does nothing where none was asked for)."""

    subject: str
    data: bytes
    respond: Callable[[bytes], Awaitable[None]]


Handler = Callable[[Delivery], Awaitable[None]]
"""Runs one at a time per subscription, in order; a handler that has long work starts a task."""


@dataclass(frozen=True)
class Entry:
    """A KV entry; `value` None: deleted."""

    key: str
    value: bytes | None
    revision: int


class Subscription(Protocol):
    """A running subscription or micro service."""

    async def close(self) -> None:
        """Stop receiving."""


class Bucket(Protocol):
    """A KV bucket. Methods raise BusDown while not connected."""

    async def get(self, key: str) -> Entry | None:
        """The current entry, or None."""

    async def put(self, key: str, value: bytes) -> int:
        """Store without condition; the new revision."""

    async def create(self, key: str, value: bytes) -> int:
        """Store if there is none; the new revision, or Conflict."""

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Store if the key's revision still is `revision`; the new revision, or Conflict."""

    async def delete(self, key: str) -> None:
        """Delete the key (watchers get an entry with value None)."""

    async def keys(self) -> list[str]:
        """All keys."""

    async def history(self, key: str) -> list[Entry]:
        """The kept revisions of a key, oldest first."""

    def watch(self, key: str = ">") -> AsyncIterator[Entry]:
        """Current entries first, then every change, for ever.

        It survives a lost connection and gives nothing older than what it gave; the newest may come again.
        """


Endpoint = Callable[[bytes], Awaitable[bytes]]
"""Answers a micro-service request. Raise `ServiceError` to answer an error; anything else answers code 500 without details."""


class ServiceError(Exception):
    """An error answer of a micro-service endpoint."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Bus(Protocol):
    """A connection to the bus that outlives the server."""

    @property
    def connected(self) -> bool:
        """Whether the server is reachable now."""

    @property
    def dropped(self) -> int:
        """Messages dropped because a handler was too slow, since start."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call back each time the connection is there again."""

    async def publish(self, subject: str, data: bytes) -> None:
        """Send. Raises TooLarge; while not connected the message is dropped and counted in `unsent`."""

    @property
    def unsent(self) -> int:
        """Messages dropped by `publish` while not connected."""

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Receive a subject (`*` and `>` allowed). Stays subscribed over reconnects."""

    async def request(self, subject: str, data: bytes, timeout: float = 2.0) -> bytes:
        """Ask and wait. Raises NoResponders, RequestTimeout, TooLarge, BusDown, or ServiceError (a micro service's error)."""

    async def bucket(self, name: str, history: int = 1) -> Bucket:
        """A KV bucket, made if missing."""

    async def stream(self, name: str, subjects: list[str], max_bytes: int) -> None:
        """Make sure that what is published on `subjects` is kept, the newest `max_bytes`."""

    async def last(self, stream: str, subject: str, count: int) -> list[bytes]:
        """The newest kept messages of a subject (wildcards allowed), oldest first."""

    async def put_file(self, bucket: str, name: str, data: bytes) -> None:
        """Store a file (any size). Storing the same name again is no error."""

    async def get_file(self, bucket: str, name: str) -> bytes | None:
        """A stored file, or None."""

    async def serve(self, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]) -> Subscription:
        """A NATS micro service: answers `<name>.<endpoint>`, and ping, info, stats by themselves."""

    async def close(self) -> None:
        """Drain and disconnect."""
