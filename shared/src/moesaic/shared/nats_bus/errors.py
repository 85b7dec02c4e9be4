"""What the nats client raises, as what our bus raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from nats import errors
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from moesaic.shared.bus import BusDown, BusError

GONE = (
    errors.ConnectionClosedError,
    errors.ConnectionDrainingError,
    errors.ConnectionReconnectingError,
    errors.OutboundBufferLimitError,
    errors.StaleConnectionError,
)
"""The client has no connection (any more)."""

WRONG_LAST_SEQUENCE = (10071, 10164)
STREAM_NOT_FOUND = 10059
STREAM_EXISTS = 10058
NO_JETSTREAM = (10039, 10076)
"""Not enabled for this account, not enabled at all."""


class Missing(BusError):
    """JetStream does not have what was asked for."""


class NoStream(Missing):
    """The stream behind a bucket does not exist (any more)."""


def reason(error: BaseException | None) -> str:
    """One line for people."""
    return str(error) or type(error).__name__ if error else "closed"


@contextmanager
def cancellable() -> Iterator[None]:
    """Whoever is cancelled within a call of the client stays cancelled.

    The client waits with `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes in the same moment
    as what it waits for; a task in a loop would then never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of a JetStream call as BusDown, Missing or BusError; a cancellation is never lost."""
    try:
        with cancellable():
            yield
    except NotFoundError as error:
        raise (NoStream if error.err_code == STREAM_NOT_FOUND else Missing)(what) from error
    except NoStreamResponseError as error:
        raise NoStream(what) from error
    except (*GONE, errors.TimeoutError, errors.NoRespondersError, ServiceUnavailableError) as error:
        raise BusDown(f"{what}: {reason(error)}") from error
    except APIError as error:
        raise BusError(f"{what}: {error.description or error} ({error.err_code})") from error
