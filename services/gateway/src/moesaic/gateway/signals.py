"""Something happened: wakes everyone who waits for it now."""

from __future__ import annotations

import asyncio


class Signal:
    """Unlike an Event it is never set: who comes later waits for the next time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """It happened."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for the next time; False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
