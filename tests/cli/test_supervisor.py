"""The order in which a mesh ends, and what becomes of one that does not come up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from buses import until
from moesaic.cli.children import Child
from moesaic.cli.errors import Stop
from moesaic.cli.supervisor import Supervisor

SECONDS = 30
NAMES = ["nats", "engine-0", "engine-1", "planner", "gateway"]
POLITE = """
import signal, sys
def end(*_):
    with open("order", "a") as file:
        file.write(sys.argv[1] + "\\n")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("here", flush=True)
while True:
    signal.pause()
"""


def _child(name: str, program: str, folder: Path) -> Child:
    return Child(name, [sys.executable, "-S", "-c", program, name], folder / f"{name}.log", lambda _: None)


async def test_on_a_signal_the_gateway_ends_first_and_nats_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    children = [_child(name, POLITE, tmp_path) for name in NAMES]
    up: list[int | None] = []

    async def begin() -> None:
        await until(lambda: all(child.pid is not None and child.log.read_text() for child in children))

    def changed() -> None:
        up.extend(child.pid for child in children)
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(SECONDS):
        await Supervisor(children, begin, changed, lambda _: None).run()
    order = (tmp_path / "order").read_text().split()
    assert (order[0], order[-1], sorted(order)) == ("gateway", "nats", sorted(NAMES))
    assert None not in up
    assert all(child.pid is None for child in children)


async def test_a_child_that_will_not_come_up_ends_the_others_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    children = [
        _child("nats", POLITE, tmp_path),
        _child("engine-0", "import sys; sys.exit('no weights')", tmp_path),
    ]

    async def begin() -> None:
        await asyncio.Event().wait()

    supervisor = Supervisor(children, begin, lambda: None, lambda _: None)
    with pytest.raises(Stop, match="engine-0: no weights"):
        async with asyncio.timeout(SECONDS):
            await supervisor.run()
    assert children[0].pid is None
