"""Which port a mesh takes, and that it stays its own."""

from __future__ import annotations

import asyncio
import socket

import pytest

from moesaic.cli.errors import Stop
from moesaic.cli.ports import Claim, claim

HOST = "127.0.0.1"


def test_the_next_free_port_is_taken_where_none_is_wished() -> None:
    with Claim(HOST, 0) as first, claim(HOST, None, first.port) as second:
        assert second.port > first.port


def test_two_meshes_that_look_at_once_get_different_ports() -> None:
    with Claim(HOST, 0) as first, pytest.raises(Stop, match=f"port {first.port} is taken"):
        claim(HOST, first.port, 1)


def test_a_port_on_which_another_program_listens_is_taken() -> None:
    with socket.create_server((HOST, 0)) as other, pytest.raises(Stop, match="is taken"):
        claim(HOST, other.getsockname()[1], 1)


async def test_a_service_can_listen_on_a_claimed_port_again_and_again() -> None:
    with Claim(HOST, 0) as any_port, claim(HOST, any_port.port + 1, 1) as chosen:
        for port in (any_port.port, chosen.port) * 2:
            server = await asyncio.start_server(lambda *_: None, HOST, port)
            server.close()
            await server.wait_closed()


def test_a_port_that_was_given_up_is_free() -> None:
    with Claim(HOST, 0) as first:
        port = first.port
    with claim(HOST, port, 1) as second:
        assert second.port == port


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_told(port: int) -> None:
    with pytest.raises(Stop, match=f"no port {port}"):
        claim(HOST, port, 1)
