"""The link ends when it is told to."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import ConnectionClosedError

from moesaic.shared.nats_bus.errors import translated
from moesaic.shared.nats_bus.link import Link


class _Stubborn(Link):
    """Its life swallows the first cancellation, as a client that is just connecting may."""

    async def _live(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


async def test_closing_ends_even_when_a_cancellation_is_swallowed() -> None:
    link = _Stubborn("test", {})
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await link.close()


async def test_who_is_cancelled_within_a_call_of_the_client_stays_cancelled() -> None:
    went_on: list[str] = []

    async def caller(with_error: bool) -> None:
        with translated("get"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as the client does when an answer comes in the same moment
                if with_error:
                    raise ConnectionClosedError from None
        went_on.append("after the call")

    for with_error in (False, True):
        task = asyncio.create_task(caller(with_error))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert not went_on


async def test_a_time_limit_around_a_call_of_the_client_is_still_a_time_limit() -> None:
    async def limited() -> None:
        async with asyncio.timeout(0.01):
            with translated("get"):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await limited()
