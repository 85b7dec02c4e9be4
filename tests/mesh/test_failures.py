"""Anything may die while streams run: an engine, the planner, the monitor, the bus. No stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.placements import placement, shuffled
from mesh.processes import MODEL, Mesh, mesh, together
from moesaic.cli import prompts
from moesaic.shared.messages import encode

pytestmark = pytest.mark.mesh

PROMPTS = [prompts.prompts(domain)[i] for domain in ("code", "en", "zh", "math") for i in range(2)]
LENGTH = 300


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with mesh(tmp_path, 2, "exact", balancing=True, min_gain="0.001", interval_ms="500") as made:
        yield made


async def _streams_over(running: Mesh, trouble: asyncio.Task[None] | None = None) -> list[str]:
    texts = await together([running.complete(prompt, LENGTH) for prompt in PROMPTS])
    if trouble is not None:
        assert trouble.done(), "the streams ended before the trouble was over"
        await trouble
    return texts


async def _in_mid_stream(running: Mesh) -> int:
    """Wait until both engines have made a good part; tokens so far."""
    start = {name: s.generated_tokens for name, s in running.statuses.items()}
    await running.until(
        lambda: all(running.statuses[n].generated_tokens > start[n] + 100 for n in start), "streams under way"
    )
    return sum(s.generated_tokens for s in running.statuses.values())


async def test_an_engine_killed_in_mid_stream_comes_back_and_the_streams_go_on(running: Mesh) -> None:
    expected = await _streams_over(running)
    generation = running.statuses["engine-0"].generation

    async def trouble() -> None:
        await _in_mid_stream(running)
        await running.kill("engine-1")
        await running.until(lambda: running.statuses["engine-0"].state == "joining", "the survivor's stop")
        running.start("engine-1")
        await running.serving(generation + 1)

    assert await _streams_over(running, asyncio.create_task(trouble())) == expected


@pytest.mark.parametrize("victim", ["planner", "monitor"])
async def test_streams_do_not_notice_when_the_planner_or_the_monitor_dies(victim: str, running: Mesh) -> None:
    expected = await _streams_over(running)

    async def trouble() -> None:
        await _in_mid_stream(running)
        await running.kill(victim)

    assert await _streams_over(running, asyncio.create_task(trouble())) == expected
    windows = len(running.windows)
    running.start(victim)
    await running.until(lambda: len(running.windows) > windows or victim == "planner", "windows")
    asked = await running.until_asked("moesaic-planner" if victim == "planner" else "moesaic-monitor")
    assert asked
    balancing = asyncio.create_task(running.until(lambda: len(running.windows) > windows + 4, "balancing"))
    await _streams_over(running)
    await balancing


async def test_streams_survive_a_killed_and_restarted_bus_and_balancing_goes_on(running: Mesh) -> None:
    expected = await _streams_over(running)

    async def trouble() -> None:
        made = await _in_mid_stream(running)
        await asyncio.to_thread(running.server.stop)
        await asyncio.sleep(1.0)  # the outage itself
        await asyncio.to_thread(running.server.start)
        await running.until(
            lambda: sum(s.generated_tokens for s in running.statuses.values()) > made, "news of the engines"
        )

    assert await _streams_over(running, asyncio.create_task(trouble())) == expected
    group = await running.serving()
    epoch = await running.place(group, shuffled(group, 9))
    await running.until(lambda: running.committed(epoch), "a commit after the outage")


async def test_bad_placements_are_refused_with_their_reason_and_serving_goes_on(running: Mesh) -> None:
    await running.ask("moesaic-planner", "pause", group=MODEL)
    group = await running.serving()
    good = placement(group, shuffled(group, 1))
    live = await running.place(group, good.layers)
    await running.until(lambda: running.committed(live), "the good one")
    homeless = tuple(
        replace(layer, experts=tuple(held[1:] for held in layer.experts), shares=tuple(s[1:] for s in layer.shares))
        for layer in good.layers
    )
    bad = {
        "malformed": b'{"type":"placement.v1","layers":7}',
        "homeless": encode(replace(good, layers=homeless)),
        f"in generation {group.generation}": encode(replace(good, generation=group.generation + 7)),
        "for model": encode(replace(good, model_digest="another")),
    }
    for reason, data in bad.items():
        epoch = await running.put_placement(group.group, data)
        event = await running.until(
            lambda epoch=epoch: next((e for e in running.events if (e.event, e.epoch) == ("refused", epoch)), None),  # type: ignore[misc]
            f"refusal: {reason}",
        )
        assert event is not None
        assert reason in event.reason
        assert len(await running.complete("def f(x):", 8)) > 0
    assert all(s.epoch == live for s in running.statuses.values())
