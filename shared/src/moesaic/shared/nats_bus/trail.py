"""Streams of events: keeping the newest, reading the newest."""

from __future__ import annotations

from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy, DiscardPolicy

from moesaic.shared.bus import BusDown
from moesaic.shared.nats_bus.errors import NoStream, translated
from moesaic.shared.nats_bus.feed import open_feed
from moesaic.shared.nats_bus.storage import Storage, kept_on_disk

WIDEN = 4


async def keep(storage: Storage, stream: str, subjects: list[str], max_bytes: int) -> None:
    """Make sure the stream is there."""
    await storage.want(
        kept_on_disk(name=stream, subjects=subjects, max_bytes=max_bytes, discard=DiscardPolicy.OLD, allow_direct=True)
    )


async def last(storage: Storage, stream: str, subject: str, count: int) -> list[bytes]:
    """The newest messages of a subject: looks at the newest `count` of all, then at four times as many, and so on."""
    try:
        with translated(f"stream {stream}"):
            state = (await storage.js.stream_info(stream)).state
        window = count if state.messages else 0
        while window > 0:
            start = max(state.first_seq, state.last_seq - window + 1)
            found = await _since(storage, stream, subject, start, count, whole=start == state.first_seq)
            if found is not None:
                return [message.data for message in found[-count:]]
            window *= WIDEN
    except NoStream:
        pass
    return []


async def _since(
    storage: Storage, stream: str, subject: str, start: int, count: int, *, whole: bool
) -> list[Msg] | None:
    """The messages from sequence `start` on, or None if they are fewer than `count` and there are older ones."""
    policy = DeliverPolicy.BY_START_SEQUENCE
    async with open_feed(storage, stream, subject, policy, opt_start_seq=start) as feed:
        if feed.waiting < count and not whole:
            return None
        messages = await feed.stored()
    if messages is None:
        raise BusDown(f"lost the connection while reading {stream}")
    return messages
