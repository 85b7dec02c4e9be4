"""A KV bucket on JetStream, laid out as NATS does, so that `nats kv` reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy, DiscardPolicy, StreamConfig
from nats.js.errors import APIError

from moesaic.shared.bus import BusDown, BusError, Conflict, Entry
from moesaic.shared.names import check_key
from moesaic.shared.nats_bus.errors import WRONG_LAST_SEQUENCE, Missing, NoStream, translated
from moesaic.shared.nats_bus.feed import open_feed
from moesaic.shared.nats_bus.headers import EXPECTED, MARKER, OPERATION, check_size
from moesaic.shared.nats_bus.storage import Storage, kept_on_disk

BUCKET_BYTES = 64 << 20
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 5.0


def config_of(bucket: str, history: int) -> StreamConfig:
    """The stream behind a bucket."""
    return kept_on_disk(
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.>"],
        max_msgs_per_subject=history,
        max_bytes=BUCKET_BYTES,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=True,
    )


class NatsBucket:
    """See Bucket. A call that JetStream does not answer raises BusDown; what it was to store may have been stored."""

    def __init__(self, storage: Storage, bucket: str) -> None:
        self._storage = storage
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def get(self, key: str) -> Entry | None:
        """See Bucket."""
        entry = await self._newest(key)
        return entry if entry and entry.value is not None else None

    async def put(self, key: str, value: bytes) -> int:
        """See Bucket."""
        return await self._store(key, value, {})

    async def create(self, key: str, value: bytes) -> int:
        """See Bucket."""
        try:
            return await self.update(key, value, 0)
        except Conflict:
            newest = await self._newest(key)
            if newest is None or newest.value is not None:
                raise
            return await self.update(key, value, newest.revision)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """See Bucket."""
        return await self._store(key, value, {EXPECTED: str(revision)})

    async def delete(self, key: str) -> None:
        """See Bucket."""
        await self._store(key, b"", {OPERATION: "DEL"})

    async def keys(self) -> list[str]:
        """See Bucket."""
        entries = await self._stored(">", DeliverPolicy.LAST_PER_SUBJECT, headers_only=True)
        return [entry.key for entry in entries if entry.value is not None]

    async def history(self, key: str) -> list[Entry]:
        """See Bucket."""
        check_key(key)
        return await self._stored(key, DeliverPolicy.ALL)

    async def watch(self, key: str = ">") -> AsyncIterator[Entry]:
        """See Bucket. Of a bucket that the server lost, what is put anew is given, not that the rest is gone."""
        given: set[str] = set()
        seen, pause = 0, RETRY_SECONDS
        while True:
            await self._storage.link.up.wait()
            try:
                seen = await self._resume(seen)
                async with open_feed(
                    self._storage, self._stream, self._prefix + key, DeliverPolicy.LAST_PER_SUBJECT
                ) as feed:
                    pause = RETRY_SECONDS
                    while message := await feed.next():
                        entry = self._entry(message)
                        if entry.revision > seen:
                            seen = entry.revision
                            if entry.value is not None or entry.key in given:
                                given.add(entry.key)
                                yield entry
            except BusError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _resume(self, seen: int) -> int:
        """The revision after which a watch goes on: from the start if the bucket has begun another life below it."""
        info = await self._storage.ensure(self._stream)
        return seen if info.state.last_seq >= seen else 0

    async def _newest(self, key: str) -> Entry | None:
        check_key(key)
        try:
            with translated(f"get {key}"):
                message = await self._storage.js.get_last_msg(self._stream, self._prefix + key)
        except Missing:
            return None
        revision = int(message.seq or 0)
        self._storage.saw(self._stream, revision)
        return Entry(key, None if _deleted(message.headers) else message.data or b"", revision)

    async def _stored(self, key: str, policy: DeliverPolicy, *, headers_only: bool = False) -> list[Entry]:
        try:
            async with open_feed(
                self._storage, self._stream, self._prefix + key, policy, headers_only=headers_only
            ) as feed:
                messages = await feed.stored()
        except NoStream:
            return []
        if messages is None:
            raise BusDown(f"lost the connection while reading {self._stream}")
        return [self._entry(message) for message in messages]

    async def _store(self, key: str, value: bytes, headers: Mapping[str, str]) -> int:
        check_key(key)
        check_size(value, self._storage.link.client.max_payload, headers)
        try:
            return await self._publish(key, value, headers)
        except NoStream:
            await self._storage.ensure(self._stream)
            return await self._publish(key, value, headers)

    async def _publish(self, key: str, value: bytes, headers: Mapping[str, str]) -> int:
        with translated(f"put {key}"):
            try:
                ack = await self._storage.js.publish(self._prefix + key, value, headers=dict(headers) or None)
            except APIError as error:
                if error.err_code in WRONG_LAST_SEQUENCE:
                    raise Conflict(f"{key}: {error.description}") from error
                raise
        self._storage.saw(self._stream, ack.seq)
        return int(ack.seq)

    def _entry(self, message: Msg) -> Entry:
        revision = int(message.metadata.sequence.stream)
        self._storage.saw(self._stream, revision)
        value = None if _deleted(message.headers) else message.data
        return Entry(message.subject.removeprefix(self._prefix), value, revision)


def _deleted(headers: Mapping[str, str] | None) -> bool:
    head = headers or {}
    return head.get(OPERATION) in ("DEL", "PURGE") or MARKER in head
