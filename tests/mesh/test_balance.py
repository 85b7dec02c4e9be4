"""A skewed load is balanced, with replicas of the hot experts; when the domain changes, it is balanced again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from mesh.processes import MODEL, Mesh, mesh
from moesaic.cli import prompts
from moesaic.planner.cost import Cost
from moesaic.planner.layout import hold_of
from moesaic.planner.predict import outlook
from moesaic.planner.warm import warm
from moesaic.shared import subjects
from moesaic.shared.arrays import Ints, unpack
from moesaic.shared.messages import Imbalance, Placement, decode
from moesaic.shared.placement import State, in_order

pytestmark = pytest.mark.mesh


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Kernels are loaded from disk before an event loop is watched."""
    warm()


@asynccontextmanager
async def _traffic(running: Mesh, domain: str, streams: int = 8) -> AsyncIterator[None]:
    """A steady load of one domain."""

    async def stream(turn: int) -> None:
        texts = prompts.prompts(domain)
        while True:
            await running.complete(texts[turn % len(texts)], 48, temperature=0.7, seed=turn)
            turn += streams

    tasks = [asyncio.create_task(stream(turn)) for turn in range(streams)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


def _tokens(windows: list[Imbalance]) -> Ints:
    """Routed tokens `[L, E]` of some windows."""
    return np.asarray(np.sum([unpack(phase.tokens) for w in windows for phase in w.phases.values()], axis=0))


def _balance(windows: list[Imbalance]) -> float:
    decode_phases = [w.phases["decode"] for w in windows if "decode" in w.phases]
    seen = [(p.balance, p.steps) for p in decode_phases if p.balance is not None]
    return float(np.average([b for b, _ in seen], weights=[s for _, s in seen]))


async def _live(running: Mesh) -> State:
    entry = await (await running.bus.bucket(subjects.PLACEMENTS)).get(subjects.token(MODEL))
    assert entry is not None
    assert entry.value is not None
    return decode(entry.value, Placement).layers


def _levelled(state: State, tokens: Ints, ranks: int) -> float:
    """Balance of a placement for some load that is dispatched as engines do: mean / max rank load, mean over layers."""
    return outlook(tokens[None], hold_of(state, tokens.shape[1]), Cost.tokens(ranks)).balance


async def _settled(running: Mesh, after: int, count: int = 8) -> list[Imbalance]:
    """The first run of `count` windows with decode steps under one epoch later than `after`."""

    def run() -> list[Imbalance]:
        last = [w for w in running.windows if "decode" in w.phases and w.phases["decode"].steps][-count:]
        same = len({(w.epoch, w.instalment) for w in last}) == 1
        return last if len(last) == count and same and last[0].epoch > after else []

    return await running.until(run, f"{count} windows under one placement after epoch {after}")


@pytest.mark.parametrize("engines", [2, 4])
async def test_a_skewed_load_is_balanced_and_again_when_the_domain_changes(engines: int, tmp_path: Path) -> None:
    """With so little room for replicas that what suits one domain does not suit the other."""
    async with mesh(tmp_path, engines, "fast", balancing=True, extra_slots=1) as running:
        await running.ask("moesaic-planner", "pause", group=MODEL)
        async with _traffic(running, "zh"):
            before = await _settled(running, after=-1)
            await running.ask("moesaic-planner", "resume", group=MODEL)
            windows = await _settled(running, after=0)
        tokens = _tokens(windows)
        state = await _live(running)
        default = _levelled(in_order(4, 32, engines), tokens, engines)
        assert {w.epoch for w in before} == {0}
        assert _levelled(state, tokens, engines) > default + 0.02
        assert _balance(windows) > _balance(before)
        hot = {(layer, int(expert)) for layer in range(4) for expert in np.argsort(-tokens[layer])[:4]}
        copied = {
            (i, e) for i, layer in enumerate(state) for e in range(32) if sum(e in held for held in layer.experts) > 1
        }
        assert hot & copied, "no hot expert has a replica"

        async with _traffic(running, "code"):
            skip = len(running.windows) + 2
            await running.until(lambda: len(running.windows) >= skip + 6, "windows of the new domain")
            tokens = _tokens(running.windows[skip:])
            await _better_than(running, _levelled(state, tokens, engines), tokens, engines)


async def _better_than(running: Mesh, balance: float, tokens: Ints, engines: int) -> None:
    """Wait for a live placement under which this load is balanced better."""
    while _levelled(await _live(running), tokens, engines) <= balance:
        commits = running.count("committed")
        await running.until(
            lambda: running.count("committed") > commits,  # noqa: B023
            f"a placement better than {balance:.3f} for the new domain",
        )
