"""TCP ports of loopback, claimed for the services that will listen on them.

A port that is only looked up may be gone when its service starts: another mesh may look at the same time, and while a
service is being restarted a client that connects to its port from the same machine may get that very port as its own. A
claim is bound but does not listen, so a service that sets SO_REUSEADDR can, and nobody else gets the port by chance.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager

from moesaic.cli.errors import Stop

TRIES = 100


class Claim(AbstractContextManager["Claim"]):
    """A port kept for a service of ours until the end of the block. Raises OSError where it is taken; port 0: any."""

    def __init__(self, host: str, port: int) -> None:
        self._bound = socket.socket()
        self._name = socket.socket(socket.AF_UNIX)
        try:
            if port:  # what was used a minute ago may be used again; any port must be one that nobody has claimed
                self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bound.bind((host, port))
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.port = int(self._bound.getsockname()[1])
            # Two claims of one port could both be bound: the name (of Linux's abstract kind, no file) has one owner.
            self._name.bind(f"\0moesaic-port-{self.port}")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Give the port up."""
        self._bound.close()
        self._name.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(host: str, wanted: int | None, default: int) -> Claim:
    """The wanted port, which must be free (0: any); without a wish the default or the next free one after it."""
    if wanted is not None and not 0 <= wanted < 1 << 16:
        raise Stop(f"there is no port {wanted}: give one from 1 to 65535")
    for port in range(default, default + TRIES) if wanted is None else (wanted,):
        try:
            return Claim(host, port)
        except PermissionError:
            raise Stop(f"port {port} is not for ordinary users: give one above 1023") from None
        except OSError:
            continue
    if wanted is None:
        raise Stop(f"ports {default} to {default + TRIES - 1} are all taken: give one (make up PORT=…)")
    raise Stop(f"port {wanted} is taken: give another one (make up PORT=…), or none for the next free one")
