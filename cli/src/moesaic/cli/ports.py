"""TCP ports of loopback."""

from __future__ import annotations

import socket

from moesaic.cli.errors import Stop

TRIES = 100


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def any_free(host: str) -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def choose(host: str, wanted: int | None, default: int) -> int:
    """The wanted port, which must be free; else the default or the next free one after it."""
    if wanted is not None:
        if wanted and not is_free(host, wanted):
            raise Stop(f"port {wanted} is taken: give another one (make up PORT=…), or none for the next free one")
        return wanted or any_free(host)
    for port in range(default, default + TRIES):
        if is_free(host, port):
            return port
    raise Stop(f"ports {default} to {default + TRIES - 1} are all taken: give one (make up PORT=…)")
