"""Anything may die while streams run: an engine, the planner, the monitor, the bus. No stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from engine.placements import placement, shuffled
from mesh.processes import MODEL, Mesh, mesh, together
from moesaic.cli import prompts
from moesaic.shared.messages import encode

pytestmark = pytest.mark.mesh

PROMPTS = [prompts.prompts(domain)[i] for domain in ("code", "en", "zh", "math") for i in range(2)]
LENGTH = 250


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The texts of a mesh to which nothing happens."""
    async with mesh(tmp_path_factory.mktemp("calm"), 1, "exact") as calm:
        return await _streams(calm)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with mesh(tmp_path, 2, "exact", balancing=True, interval_ms="500") as made:
        yield made


async def _streams(running: Mesh) -> list[str]:
    return await together([running.complete(prompt, LENGTH) for prompt in PROMPTS])


async def _streams_through(running: Mesh, trouble: Coroutine[None, None, None]) -> list[str]:
    """The texts of streams during which something happens."""
    task = asyncio.create_task(trouble)
    texts = await _streams(running)
    assert task.done(), "the streams ended before the trouble was over"
    await task
    return texts


async def _in_mid_stream(running: Mesh) -> int:
    """Wait until both engines have made a good part; tokens so far."""
    start = {name: s.generated_tokens for name, s in running.statuses.items()}
    await running.until(
        lambda: all(running.statuses[n].generated_tokens > start[n] + 100 for n in start), "streams under way"
    )
    return sum(s.generated_tokens for s in running.statuses.values())


async def test_an_engine_killed_in_mid_stream_comes_back_and_the_streams_go_on(
    running: Mesh, expected: list[str]
) -> None:
    generation = running.statuses["engine-0"].generation

    async def trouble() -> None:
        await _in_mid_stream(running)
        await running.kill("engine-1")
        await running.until(lambda: running.statuses["engine-0"].state == "joining", "the survivor's stop")
        running.start("engine-1")
        await running.serving(generation + 1)

    assert await _streams_through(running, trouble()) == expected


async def test_streams_do_not_notice_when_planner_and_monitor_die_and_balancing_goes_on_afterwards(
    running: Mesh, expected: list[str]
) -> None:
    async def trouble() -> None:
        await _in_mid_stream(running)
        await running.kill("planner")
        await running.kill("monitor")

    assert await _streams_through(running, trouble()) == expected
    windows, proposals = len(running.windows), running.count("proposed")
    running.start("monitor")
    running.start("planner")
    await running.until_answered("moesaic-monitor", "state")
    await running.until_answered("moesaic-planner", "status")
    group = await running.serving()
    await running.place(group, shuffled(group, 3))  # not what fits this load
    again = asyncio.create_task(_streams(running))
    await running.until(lambda: running.count("proposed") > proposals, "a new proposal")
    assert await again == expected
    assert len(running.windows) > windows


async def test_streams_survive_a_killed_and_restarted_bus_and_balancing_goes_on(
    running: Mesh, expected: list[str]
) -> None:
    async def trouble() -> None:
        made = await _in_mid_stream(running)
        await asyncio.to_thread(running.server.stop)
        await asyncio.sleep(1.0)  # the outage itself
        await asyncio.to_thread(running.server.start)
        await running.until(
            lambda: sum(s.generated_tokens for s in running.statuses.values()) > made, "news of the engines"
        )

    assert await _streams_through(running, trouble()) == expected
    group = await running.serving()
    await running.ask("moesaic-planner", "pause", group=MODEL)
    epoch = await running.place(group, shuffled(group, 9))
    await running.until(lambda: running.committed(epoch), "a commit after the outage")


async def test_a_bus_that_loses_its_state_is_given_it_again(running: Mesh, expected: list[str]) -> None:
    group = await running.serving()
    epoch = await running.place(group, shuffled(group, 4))
    await running.until(lambda: running.committed(epoch), "a placement")

    async def trouble() -> None:
        await _in_mid_stream(running)
        await asyncio.to_thread(running.server.stop)
        running.server.lose_state()
        await asyncio.to_thread(running.server.start)
        await running.serving(group.generation + 1)

    assert await _streams_through(running, trouble()) == expected
    await running.until_answered("moesaic-planner", "status")
    await running.ask("moesaic-planner", "pause", group=MODEL)
    again = await running.serving()
    epoch = await running.place(again, shuffled(again, 5))
    await running.until(lambda: running.committed(epoch), "a placement after the loss")


async def test_bad_placements_are_refused_with_their_reason_and_serving_goes_on(tmp_path: Path) -> None:
    async with mesh(tmp_path, 2, "exact") as running:
        await _refuse_each(running)


async def _refuse_each(running: Mesh) -> None:
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


async def test_a_refused_placement_is_taken_back_by_the_planner_under_a_new_epoch(running: Mesh) -> None:
    group = await running.serving()
    good = await running.place(group, shuffled(group, 1))
    await running.until(lambda: running.committed(good), "the good one")
    bad = await running.put_placement(group.group, b"{}")
    back = await running.until(lambda: next((e for e in running.events if e.event == "rolled_back"), None), "roll back")
    assert back is not None
    assert back.epoch > bad
    await running.until(lambda: running.committed(back.epoch), "the old content again")
    assert all(e.moves == 0 for e in running.events if (e.event, e.epoch) == ("committed", back.epoch))
