"""Each test of the contract runs on the in-memory bus and on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from buses import MemoryMesh, Mesh, NatsMesh, nats_mesh
from natsd import NatsServer


@pytest.fixture(params=["memory", "nats"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    if request.param == "memory":
        yield MemoryMesh()
        return
    server = NatsServer(tmp_path)
    server.start()
    async with nats_mesh(server) as real:
        yield real
    server.stop()


@pytest.fixture
async def real(server: NatsServer) -> AsyncIterator[NatsMesh]:
    async with nats_mesh(server) as mesh:
        yield mesh
