"""`moesaic load` against an API that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest
from aiohttp import web

from moesaic.cli.errors import Stop
from moesaic.cli.figures import Figures
from moesaic.cli.loadgen import Plan, drive
from moesaic.cli.prompts import prompts

PLAN = Plan(
    api="", monitor="", model=None, domains=["zh", "math"], rate=100, seconds=0.2, max_tokens=4, concurrency=8
)  # fmt: skip
FINISHED: list[object] = [
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
]


@asynccontextmanager
async def api(models: Sequence[str], chunks: Sequence[object], asked: list[str]) -> AsyncIterator[str]:
    """An API that answers every prompt with these chunks."""

    async def complete(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["messages"][0]["content"])
        stream = web.StreamResponse()
        await stream.prepare(request)
        for chunk in chunks:
            await stream.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await stream.write(b"data: [DONE]\n\n")
        return stream

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": model} for model in models]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_it_counts_what_was_answered_by_domain() -> None:
    asked: list[str] = []
    async with api(["m"], FINISHED, asked) as url:
        summary = await drive(replace(PLAN, api=url), None)
    by_domain = {d: sum(prompt in prompts(d) for prompt in asked) for d in PLAN.domains}
    assert (summary["model"], summary["failed"], summary["done"]) == ("m", 0, len(asked))
    assert {d: shown["done"] for d, shown in summary["domains"].items()} == by_domain
    assert all(by_domain.values())


async def test_the_same_seed_asks_the_same() -> None:
    runs: list[list[str]] = [[], []]
    for asked in runs:
        async with api(["m"], FINISHED, asked) as url:
            await drive(replace(PLAN, api=url, concurrency=1), None)
    assert runs[0] == runs[1] != []


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        (FINISHED[:1], "the stream ended without a finish"),
        ([*FINISHED[:1], {"error": {"message": "group lost"}}], "group lost"),
    ],
)
async def test_a_broken_stream_is_a_failure_with_its_reason(chunks: list[object], error: str) -> None:
    lines: list[str] = []
    async with api(["m"], chunks, []) as url:
        summary = await drive(replace(PLAN, api=url), lines.append)
    assert summary["done"] == 0
    assert summary["errors"] == {error: summary["failed"]}
    assert lines[-1] == f"{summary['failed']} x {error}"


async def test_an_api_without_models_or_none_at_all_is_told() -> None:
    async with api([], FINISHED, []) as url:
        with pytest.raises(Stop, match="no model yet"):
            await drive(replace(PLAN, api=url), None)
    with pytest.raises(Stop, match="does not answer"):
        await drive(replace(PLAN, api=url), None)


@pytest.mark.parametrize(("elapsed", "domain"), [(0.0, "zh"), (0.099, "zh"), (0.1, "math"), (9.0, "math")])
def test_the_time_is_divided_over_the_domains_in_their_order(elapsed: float, domain: str) -> None:
    assert PLAN.domain_at(elapsed) == domain


def test_a_domain_named_twice_has_twice_the_time() -> None:
    plan = replace(PLAN, domains=["zh", "c", "zh"], seconds=30)
    assert (plan.seconds_of("zh"), plan.seconds_of("c")) == (20, 10)


def test_figures_are_percentiles_in_milliseconds_and_none_without_requests() -> None:
    figures = Figures(done=2, tokens=10, first=[0.3, 0.1, 0.2])
    shown = figures.shown(2.0)
    assert shown["ttft_ms"] == {"p50": 200.0, "p99": 300.0}
    assert shown["itl_ms"] == {"p50": None, "p99": None}
    assert shown["tokens_per_second"] == 5.0
