"""Parked ranks are woken by their own work, by a peer's ring, and by a peer's end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from moesaic.engine.native.bell import Bell
from moesaic.engine.native.fabric import FabricLost


@pytest.fixture
def pair() -> Iterator[tuple[Bell, Bell]]:
    bells = Bell("127.0.0.1"), Bell("127.0.0.1")
    peers = [("127.0.0.1", bell.port) for bell in bells]
    for rank, bell in enumerate(bells):
        bell.connect(1, rank, peers, timeout_s=5)
    yield bells
    for bell in bells:
        bell.close()


def test_own_work_ends_the_wait_from_another_thread(pair: tuple[Bell, Bell]) -> None:
    threading.Timer(0.05, pair[0].wake).start()
    assert pair[0].wait(park=1, timeout_s=10) is True


def test_a_ring_ends_the_peers_park(pair: tuple[Bell, Bell]) -> None:
    pair[0].ring(1)
    assert pair[1].wait(park=1, timeout_s=10) is False


def test_a_ring_for_a_park_already_left_does_not_end_the_next(pair: tuple[Bell, Bell]) -> None:
    pair[0].ring(1)
    assert pair[1].wait(park=1, timeout_s=10) is False
    threading.Timer(0.2, pair[1].wake).start()
    assert pair[1].wait(park=2, timeout_s=10) is True


def test_a_peer_that_ends_is_noticed_while_parked(pair: tuple[Bell, Bell]) -> None:
    pair[0].disconnect()
    with pytest.raises(FabricLost, match="rank 0 is gone"):
        pair[1].wait(park=1, timeout_s=10)


def test_the_end_of_a_former_generation_does_not_end_the_next(pair: tuple[Bell, Bell]) -> None:
    peers = [("127.0.0.1", bell.port) for bell in pair]
    pair[1].connect(2, 1, peers, timeout_s=5)
    pair[0].connect(2, 0, peers, timeout_s=5)  # closes its connections of generation 1
    pair[0].ring(1)
    assert pair[1].wait(park=1, timeout_s=10) is False


def test_without_a_park_only_own_work_ends_the_wait(pair: tuple[Bell, Bell]) -> None:
    pair[0].ring(1)
    threading.Timer(0.1, pair[1].wake).start()
    assert pair[1].wait(park=None, timeout_s=10) is True
