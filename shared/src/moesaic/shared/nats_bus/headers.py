"""Headers of NATS messages: their size on the wire, and the error answers of micro services in them."""

from __future__ import annotations

from collections.abc import Mapping

from moesaic.shared.bus import ServiceError, TooLarge

CODE = "Nats-Service-Error-Code"
TEXT = "Nats-Service-Error"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
OPERATION = "KV-Operation"
MARKER = "Nats-Marker-Reason"
STATUS = "Status"
LAST_CONSUMER = "Nats-Last-Consumer"


def check_size(data: bytes, limit: int, headers: Mapping[str, str] | None = None) -> None:
    """Raise TooLarge if payload plus headers exceed the limit: the server would cut the connection."""
    size = len(data)
    if headers:
        size += len("NATS/1.0\r\n\r\n") + sum(len(f"{k}: {v}\r\n".encode()) for k, v in headers.items())
    if size > limit:
        raise TooLarge(size, limit)


def of_error(error: ServiceError) -> dict[str, str]:
    """The headers of an error answer."""
    return {CODE: str(error.code), TEXT: error.message}


def error_of(headers: Mapping[str, str] | None) -> ServiceError | None:
    """The error that an answer's headers say, if they say one."""
    if not headers or CODE not in headers:
        return None
    code = headers[CODE]
    return ServiceError(int(code) if code.isdecimal() else 500, headers.get(TEXT, ""))
