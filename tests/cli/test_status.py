"""`moesaic status`: what it says of a mesh, also of half a mesh."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from rich.console import Console

from moesaic.cli.status import gather
from moesaic.cli.status_text import render
from moesaic.shared import subjects
from moesaic.shared.messages import EngineStatus, Source, encode
from moesaic.shared.nats_bus import connect
from natsd import NatsServer

STATUS = EngineStatus(
    source=Source(producer="engine-0", boot="b", seq=1),
    at=0.0,
    model="m",
    role="both",
    state="serving",
    group="g",
    generation=3,
    rank=0,
    ranks=1,
    epoch=5,
    kv_blocks_used=1,
    kv_blocks_total=4,
)
PHASE = {"balance": 0.7, "balance_best": 0.95, "balance_worst": 0.6, "worst_layer": 2}
GROUP: dict[str, Any] = {
    "model": "m",
    "generation": 3,
    "ranks": 1,
    "epoch": 5,
    "instalment": 1,
    "engines": [msgspec.to_builtins(STATUS) | {"silent": False}],
    "window": {"phases": {"decode": PHASE}, "hot": [{"layer": 1, "expert": 7, "ratio": 3.5}]},
    "balance_recent": 0.8,
    "last_placement": {
        "epoch": 5, "balance_before": 0.5, "balance_after": 0.9, "phase": "decode",
        "moves": 4, "bytes": 3 << 20, "stall_ms": 0.25, "reason": "hot [bold]experts",
    },
}  # fmt: skip
REPORT: dict[str, Any] = {"nats": "nats://a", "bus": "up", "down": [], "groups": {"g": GROUP}, "planner": None}


def test_it_tells_balance_hot_experts_and_what_the_last_placement_gained() -> None:
    text = render(REPORT)
    assert "generation 3, 1 rank(s), epoch 5.1" in text
    assert "0.700 of 0.950 possible (tokens), worst layer 2 0.600, recent windows 0.800" in text
    assert "layer 1 expert 7 3.5x" in text
    assert "balance 0.500 -> 0.900 (decode), 4 moves, 3.0 MiB, stall 0.25 ms" in text


def test_reasons_are_told_as_they_are_and_lines_do_not_break() -> None:
    console = Console(width=20, force_terminal=False)
    decisions = [{"kind": "not_worth", "reason": "long [red]reason " * 20}, {"kind": "moved", "reason": "older"}]
    text = render(REPORT | {"planner": {"groups": {"g": {"paused": True, "decisions": decisions}}}}, console)
    assert "because hot [bold]experts" in text
    assert f"planner  g (paused): not worth: {'long [red]reason ' * 20}".rstrip() in text
    assert "\x1b" not in text


def test_on_a_terminal_there_is_colour() -> None:
    assert "\x1b" in render(REPORT | {"down": ["monitor"]}, Console(force_terminal=True))


async def test_without_monitor_and_planner_the_engines_speak_for_themselves(server: NatsServer) -> None:
    async with connect("test", server.url) as bus:

        async def beat() -> None:
            while True:
                await bus.publish(subjects.status("engine-0"), encode(STATUS))
                await asyncio.sleep(0.1)

        beating = asyncio.create_task(beat())
        report = await gather(server.url)
        beating.cancel()
    assert report["down"] == ["monitor", "planner"]
    assert report["serving"]
    text = render(report)
    assert "monitor is down" in text
    assert "generation 3" in text
    assert "serving" in text


async def test_a_bus_on_which_nobody_speaks_serves_nothing(server: NatsServer) -> None:
    report = await gather(server.url)
    assert not report["serving"]
    assert "no engine has been heard" in render(report)
