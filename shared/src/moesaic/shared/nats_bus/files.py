"""Files in the JetStream object store, laid out as NATS does, so that `nats object` reads them."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import urlsafe_b64encode

from nats.js.api import DeliverPolicy, DiscardPolicy, ObjectInfo, ObjectMeta, ObjectMetaOptions
from nats.js.object_store import ObjectStore

from moesaic.shared.bus import BusDown
from moesaic.shared.nats_bus.errors import Missing, NoStream, translated
from moesaic.shared.nats_bus.feed import open_feed
from moesaic.shared.nats_bus.storage import Storage, kept_on_disk

FILES_BYTES = 256 << 20
CHUNK_BYTES = 128 << 10


async def put(storage: Storage, bucket: str, name: str, data: bytes) -> None:
    """Store a file; one that is there with the same content is left alone. Raises BusDown, BusError."""
    await storage.want(
        kept_on_disk(
            name=f"OBJ_{bucket}",
            subjects=[f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
            max_bytes=FILES_BYTES,
            discard=DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_direct=True,
        )
    )
    digest = await asyncio.to_thread(_digest, data)
    info = await _info(storage, bucket, name)
    if info is not None and info.digest == digest:
        return
    chunk = min(CHUNK_BYTES, storage.link.client.max_payload // 2)
    with translated(f"put file {name}"):
        await _store(storage, bucket).put(name, data, ObjectMeta(options=ObjectMetaOptions(max_chunk_size=chunk)))


async def get(storage: Storage, bucket: str, name: str) -> bytes | None:
    """A file, checked by its digest, or None. Raises BusDown, BusError."""
    info = await _info(storage, bucket, name)
    if info is None:
        return None
    if not info.size:
        return b""
    try:
        async with open_feed(storage, f"OBJ_{bucket}", f"$O.{bucket}.C.{info.nuid}", DeliverPolicy.ALL) as feed:
            messages = await feed.stored()
    except NoStream:
        return None
    data = b"".join(message.data for message in messages or ())
    if await asyncio.to_thread(_digest, data) != info.digest:
        raise BusDown(f"file {name} arrived incomplete")
    return data


async def _info(storage: Storage, bucket: str, name: str) -> ObjectInfo | None:
    try:
        with translated(f"file {name}"):
            return await _store(storage, bucket).get_info(name)
    except Missing:
        return None


def _store(storage: Storage, bucket: str) -> ObjectStore:
    return ObjectStore(bucket, f"OBJ_{bucket}", storage.js)


def _digest(data: bytes) -> str:
    return f"SHA-256={urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}"
