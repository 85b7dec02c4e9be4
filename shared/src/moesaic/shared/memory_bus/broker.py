"""What the in-memory buses of one process share: who listens, what is kept, and whether it is reachable at all."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from moesaic.shared.bus import BusDown, Conflict, Entry, ServiceError
from moesaic.shared.inbox import Inbox
from moesaic.shared.names import matches

Answer = Callable[[bytes | ServiceError], None]


@dataclass(frozen=True)
class Sent:
    """A message on its way; `answer` takes the reply where one is wanted."""

    subject: str
    data: bytes
    answer: Answer | None = None


@dataclass(frozen=True, eq=False)
class Route:
    """One subscription's place at the broker."""

    pattern: str
    queue: str
    inbox: Inbox[Sent]


class Kept:
    """A KV bucket's content: all revisions that its history keeps, numbered over all keys."""

    def __init__(self) -> None:
        self.history = 1
        self.revision = 0
        self.keys: dict[str, list[Entry]] = {}
        self.watchers: list[asyncio.Queue[Entry]] = []

    def latest(self, pattern: str = ">") -> list[Entry]:
        """The newest revision of each key that matches, oldest first, deletions included."""
        newest = [entries[-1] for key, entries in self.keys.items() if matches(pattern, key)]
        return sorted(newest, key=lambda entry: entry.revision)

    def store(self, key: str, value: bytes | None) -> Entry:
        """The next revision."""
        self.revision += 1
        entry = Entry(key, value, self.revision)
        self.keys[key] = [*self.keys.get(key, []), entry][-self.history :]
        return entry

    def check(self, key: str, revision: int) -> None:
        """Raise Conflict unless the key is at this revision (0: absent or deleted)."""
        entries = self.keys.get(key)
        now = entries[-1].revision if entries else 0
        absent = not entries or entries[-1].value is None
        if revision != now and not (revision == 0 and absent):
            raise Conflict(f"{key}: expected revision {revision}, it is {now}")


@dataclass
class Trail:
    """A stream: the newest messages on its subjects."""

    subjects: list[str]
    max_bytes: int
    messages: deque[Sent] = field(default_factory=deque)
    size: int = 0

    def keep(self, sent: Sent) -> None:
        """Append, and discard the oldest beyond `max_bytes`."""
        self.messages.append(sent)
        self.size += len(sent.data)
        while self.size > self.max_bytes:
            self.size -= len(self.messages.popleft().data)


class MemoryBroker:
    """Stands where a NATS server would. `down` and `up` are an outage that keeps its state; `lose` drops messages."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.reachable = True
        self.routes: list[Route] = []
        self.buckets: dict[str, Kept] = {}
        self.trails: dict[str, Trail] = {}
        self.files: dict[tuple[str, str], bytes] = {}
        self.reconnected: list[Callable[[], None]] = []
        self._losses: list[tuple[str, int, itertools.count[int]]] = []
        self._turn = itertools.count()

    def down(self) -> None:
        """Cut every bus off."""
        self.reachable = False

    def up(self) -> None:
        """Let every bus reconnect; watchers catch up with the newest revisions."""
        if self.reachable:
            return
        self.reachable = True
        for kept in self.buckets.values():
            for watcher in kept.watchers:
                for entry in kept.latest():
                    watcher.put_nowait(entry)
        for callback in list(self.reconnected):
            callback()

    def lose(self, pattern: str, every: int) -> None:
        """From now on lose each `every`-th message whose subject matches."""
        self._losses.append((pattern, every, itertools.count(1)))

    def check(self) -> None:
        """Raise BusDown during an outage."""
        if not self.reachable:
            raise BusDown("the memory bus is down")

    def send(self, sent: Sent) -> int:
        """Hand a message to all who listen, one per queue group; how many that are."""
        self.check()
        if self._lost(sent.subject):
            return 1
        for trail in self.trails.values():
            if any(matches(pattern, sent.subject) for pattern in trail.subjects):
                trail.keep(sent)
        chosen = self._listeners(sent.subject)
        for route in chosen:
            route.inbox.offer(sent, len(sent.data))
        return len(chosen)

    def _lost(self, subject: str) -> bool:
        counts = [next(count) % every == 0 for pattern, every, count in self._losses if matches(pattern, subject)]
        return any(counts)

    def _listeners(self, subject: str) -> list[Route]:
        hearing = [route for route in self.routes if matches(route.pattern, subject)]
        groups: dict[str, list[Route]] = {}
        for route in hearing:
            if route.queue:
                groups.setdefault(route.queue, []).append(route)
        turn = next(self._turn)
        return [r for r in hearing if not r.queue] + [group[turn % len(group)] for group in groups.values()]

    def announce(self, kept: Kept, entry: Entry) -> None:
        """Tell a bucket's watchers of a change."""
        for watcher in kept.watchers:
            watcher.put_nowait(entry)
