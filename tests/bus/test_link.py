"""The link ends when it is told to."""

from __future__ import annotations

import asyncio

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
