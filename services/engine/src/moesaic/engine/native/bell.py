"""How a parked group is woken: one TCP connection from every rank to every other, and a pipe for this process's own work.

Parking is collective (every rank parks after the same step), so parks are numbered alike everywhere. A ring carries the
number of the park it ends; a rank ignores rings for parks it has already left. A peer's connection that closes ends the
generation at once, also while nobody steps.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Sequence

from moesaic.engine.native.fabric import FabricLost

_HELLO = struct.Struct("<qq")  # generation, rank
_RING = struct.Struct("<q")  # number of the park


class Bell:
    """Owned by the step loop's thread; only `wake` may be called from others."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._pipe_out, self._pipe_in = os.pipe()
        os.set_blocking(self._pipe_out, False)
        os.set_blocking(self._pipe_in, False)
        self._select = selectors.DefaultSelector()
        self._select.register(self._listener, selectors.EVENT_READ)
        self._select.register(self._pipe_out, selectors.EVENT_READ)
        self._generation = 0
        self._ranks = 1
        self._outgoing: list[socket.socket] = []
        self._incoming: dict[socket.socket, _Peer] = {}
        self._rung = -1

    def wake(self) -> None:
        """This process has something to do. Safe from any thread, and from a closing process."""
        try:
            os.write(self._pipe_in, b"!")
        except BlockingIOError:
            pass  # the pipe is full of wakes already
        except OSError:
            pass  # closed: nobody is left to wake

    def connect(self, generation: int, rank: int, peers: Sequence[tuple[str, int]], timeout_s: float) -> None:
        """Enter a generation: connect to the bell of every other rank. Raises FabricLost."""
        self.disconnect()
        self._generation = generation
        self._ranks = len(peers)
        self._rung = -1
        for other, address in enumerate(peers):
            if other == rank:
                continue
            try:
                connection = socket.create_connection(address, timeout=timeout_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(_HELLO.pack(generation, rank))
            except OSError as error:
                raise FabricLost(f"rank {other} cannot be reached at {address[0]}:{address[1]}: {error}") from error
            self._outgoing.append(connection)

    def disconnect(self) -> None:
        """Leave the generation; peers notice."""
        for connection in self._outgoing:
            connection.close()
        self._outgoing.clear()
        for connection, peer in list(self._incoming.items()):
            if peer.generation is not None and peer.generation <= self._generation:
                self._drop(connection)

    def ring(self, park: int) -> None:
        """End park number `park` on every other rank. Raises FabricLost."""
        for connection in self._outgoing:
            try:
                connection.sendall(_RING.pack(park))
            except OSError as error:
                raise FabricLost(f"a peer's bell is gone: {error}") from error

    def wait(self, park: int | None, timeout_s: float | None = None) -> bool:
        """Sleep until this process has work (True) or a peer ends the park (False; also at the timeout).

        Without a park number only this process's own work ends the wait. Raises FabricLost when a peer is gone.
        """
        while True:
            if park is not None and self._rung >= park:
                return False
            events = self._select.select(timeout_s)
            if not events:
                return False
            own = False
            for key, _ in events:
                if key.fd == self._pipe_out:
                    own = self._drain()
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(key.fileobj, parked=park is not None)  # type: ignore[arg-type]  # only sockets are left
            if own:
                return True

    def close(self) -> None:
        """Free every socket."""
        self._generation = 2**62
        self.disconnect()
        for connection in list(self._incoming):
            self._drop(connection)
        self._select.close()
        self._listener.close()
        os.close(self._pipe_in)
        os.close(self._pipe_out)

    def _drain(self) -> bool:
        while True:
            try:
                if not os.read(self._pipe_out, 4096):
                    return True
            except BlockingIOError:
                return True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        self._incoming[connection] = _Peer()
        self._select.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket, *, parked: bool) -> None:
        peer = self._incoming[connection]
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            if peer.generation == self._generation and parked:
                raise FabricLost(f"rank {peer.rank} is gone")
            return
        for park in peer.feed(data):
            if peer.generation == self._generation:
                self._rung = max(self._rung, park)

    def _drop(self, connection: socket.socket) -> None:
        del self._incoming[connection]
        self._select.unregister(connection)
        connection.close()


class _Peer:
    """What came over one incoming connection."""

    def __init__(self) -> None:
        self.generation: int | None = None
        self.rank = -1
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Park numbers in new bytes."""
        self._rest += data
        if self.generation is None:
            if len(self._rest) < _HELLO.size:
                return []
            self.generation, self.rank = _HELLO.unpack_from(self._rest)
            self._rest = self._rest[_HELLO.size :]
        whole = len(self._rest) // _RING.size * _RING.size
        parks = [park for (park,) in _RING.iter_unpack(self._rest[:whole])]
        self._rest = self._rest[whole:]
        return parks
