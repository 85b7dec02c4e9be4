"""Invariant 1 through the whole mesh: `exact` gives bitwise the same tokens on any engines, under any placements."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from engine.placements import shuffled
from mesh.processes import Mesh, mesh, together
from moesaic.cli import prompts

pytestmark = pytest.mark.mesh

DOMAINS = ("code", "c", "zh", "en", "math")
PROMPTS = [prompt for domain in DOMAINS for prompt in prompts.prompts(domain)[:4]]
LENGTH = 100


async def _all(running: Mesh) -> list[str]:
    return await together([running.complete(prompt, LENGTH) for prompt in PROMPTS])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One engine, one request after the other."""
    async with mesh(tmp_path_factory.mktemp("one"), 1) as running:
        return [await running.complete(prompt, LENGTH) for prompt in PROMPTS]


@pytest.mark.parametrize("engines", [1, 2, 3])
async def test_twenty_prompts_of_five_domains_give_the_same_tokens(
    engines: int, reference: list[str], tmp_path: Path
) -> None:
    assert len(PROMPTS) == 20
    async with mesh(tmp_path, engines) as running:
        assert await _all(running) == reference


async def test_they_give_the_same_tokens_while_five_placements_are_applied_in_mid_decode(
    reference: list[str], tmp_path: Path
) -> None:
    async with mesh(tmp_path, 2) as running:
        group = await running.serving()

        async def switch() -> list[int]:
            await running.until(lambda: any(s.generated_tokens > 20 for s in running.statuses.values()), "decoding")
            epochs = []
            for seed in range(5):
                epochs.append(await running.place(group, shuffled(group, seed)))
                await running.until(lambda: running.committed(epochs[-1]), "the commit")
            done = sum(s.generated_tokens for s in running.statuses.values())
            assert done < LENGTH * len(PROMPTS), "the last switch came after the last token"
            return epochs

        texts, epochs = await asyncio.gather(_all(running), switch())
        assert texts == reference
        assert epochs == sorted(set(epochs)) == running.epochs()
        for epoch in epochs:
            assert sum(e.moves for e in running.events if (e.event, e.epoch) == ("committed", epoch)) > 20
