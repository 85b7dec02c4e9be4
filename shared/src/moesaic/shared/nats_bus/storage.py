"""What we keep in JetStream: makes missing streams, and makes them again when the server has lost its state."""

from __future__ import annotations

from typing import Any

from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, NotFoundError

from moesaic.shared import log
from moesaic.shared.bus import BusError
from moesaic.shared.nats_bus.errors import NO_JETSTREAM, STREAM_EXISTS, translated
from moesaic.shared.nats_bus.link import Link
from moesaic.shared.service import Fatal

SECONDS = 5.0
"""Longest wait for one JetStream answer."""


class Storage:
    """The streams this process has asked for, by name, and the newest sequence it has seen of each."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._wanted: dict[str, StreamConfig] = {}
        self._seen: dict[str, int] = {}
        self._checked = False

    @property
    def js(self) -> JetStreamContext:
        """JetStream on the present connection. Raises BusDown."""
        self.link.check()
        return self.link.client.jetstream(timeout=SECONDS)

    def saw(self, stream: str, sequence: int) -> None:
        """Remember that a stream has come this far: made again, it goes on from there."""
        self._seen[stream] = max(sequence, self._seen.get(stream, 0))

    async def want(self, config: StreamConfig) -> StreamInfo:
        """Make sure that a stream exists. Raises Fatal if the server has no JetStream, BusDown, BusError."""
        await self._check_jetstream()
        self._wanted[str(config.name)] = config
        return await self.ensure(str(config.name))

    async def ensure(self, stream: str) -> StreamInfo:
        """The stream, made if missing. Limits that it already has only grow; several processes may do this at once."""
        config = self._wanted[stream]
        with translated(f"stream {stream}"):
            try:
                info = await self.js.stream_info(stream)
            except NotFoundError:
                return await self._make(config)
            return await self._grow(info, config)

    async def restore(self) -> None:
        """Make every wanted stream that is missing."""
        for stream in list(self._wanted):
            try:
                await self.ensure(stream)
            except BusError as error:
                log.get("bus").warning("a stream cannot be made again", stream=stream, reason=str(error))

    async def _make(self, config: StreamConfig) -> StreamInfo:
        start = self._seen.get(str(config.name), 0)
        if start:
            log.get("bus").warning("the server has lost a stream, making it again", stream=config.name, after=start)
        try:
            return await self.js.add_stream(config.evolve(first_seq=start + 1 if start else None))
        except APIError as error:
            if error.err_code != STREAM_EXISTS:
                raise
            return await self.js.stream_info(str(config.name))  # another process made it meanwhile, with other limits

    async def _grow(self, info: StreamInfo, config: StreamConfig) -> StreamInfo:
        changes: dict[str, Any] = {}
        if (config.max_msgs_per_subject or 0) > (info.config.max_msgs_per_subject or 0):
            changes["max_msgs_per_subject"] = config.max_msgs_per_subject
        if (config.max_bytes or 0) > (info.config.max_bytes or 0):
            changes["max_bytes"] = config.max_bytes
        if missing := set(config.subjects or ()) - set(info.config.subjects or ()):
            changes["subjects"] = [*(info.config.subjects or ()), *sorted(missing)]
        return await self.js.update_stream(info.config.evolve(**changes)) if changes else info

    async def _check_jetstream(self) -> None:
        if self._checked:
            return
        url = self.link.client.connected_url
        where = url.netloc if url else "the NATS server"
        with translated("JetStream"):
            try:
                await self.js.account_info()
            except APIError as error:
                if error.err_code in NO_JETSTREAM or (error.err_code is None and self.link.connected):
                    raise Fatal(
                        f"{where} has no JetStream: start it with -js, or enable it for this account"
                    ) from error
                raise
        self._checked = True


def kept_on_disk(**settings: Any) -> StreamConfig:
    """A stream's configuration, with what all of ours have in common."""
    return StreamConfig(storage=StorageType.FILE, num_replicas=1, **settings)
