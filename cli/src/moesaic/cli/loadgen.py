"""Drives load over HTTP: arrivals, streams, figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from moesaic.cli.errors import Stop
from moesaic.cli.prompts import prompts


@dataclass(frozen=True)
class Plan:
    """What load, against what."""

    api: str
    monitor: str
    model: str | None
    domains: Sequence[str]
    rate: float
    seconds: float
    max_tokens: int
    concurrency: int
    seed: int = 0

    def domain_at(self, elapsed: float) -> str:
        """The domain whose turn it is."""
        turn = int(elapsed / self.seconds * len(self.domains))
        return self.domains[min(turn, len(self.domains) - 1)]


@dataclass
class Figures:
    """Of the requests of a while; times in seconds."""

    done: int = 0
    failed: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, error: str) -> None:
        """Count a failure by its text."""
        self.failed += 1
        self.errors[error] = self.errors.get(error, 0) + 1

    def shown(self, seconds: float) -> dict[str, Any]:
        """As numbers for people and machines."""
        return {
            "done": self.done,
            "failed": self.failed,
            "tokens_per_second": round(self.tokens / seconds, 1) if seconds else 0.0,
            "ttft_ms": {"p50": _ms(self.first, 0.5), "p99": _ms(self.first, 0.99)},
            "itl_ms": {"p50": _ms(self.between, 0.5), "p99": _ms(self.between, 0.99)},
        }


def _ms(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3, 2)


async def drive(plan: Plan, tell: Callable[[str], None] | None) -> dict[str, Any]:
    """Run a plan; the summary."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        driver = _Driver(plan, http, plan.model or await _first_model(http, plan.api), tell)
        return await driver.run()


async def _first_model(http: aiohttp.ClientSession, api: str) -> str:
    try:
        async with http.get(f"{api}/v1/models") as answer:
            models = (await answer.json())["data"]
    except (aiohttp.ClientError, OSError, KeyError, ValueError) as error:
        raise Stop(f"the API at {api} does not answer: {error}") from error
    if not models:
        raise Stop(f"the API at {api} serves no model yet")
    return str(models[0]["id"])


class _Driver:
    def __init__(self, plan: Plan, http: aiohttp.ClientSession, model: str, tell: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.http = http
        self.model = model
        self.tell = tell
        self.total = Figures()
        self.second = Figures()
        self.by_domain = {name: Figures() for name in plan.domains}
        self.began = time.monotonic()
        self._places = asyncio.Semaphore(plan.concurrency)

    async def run(self) -> dict[str, Any]:
        """Arrivals until the time is over, then the rest of the streams."""
        teller = asyncio.create_task(self._tell())
        streams: set[asyncio.Task[None]] = set()
        draw = random.Random(self.plan.seed)
        due = 0.0
        while (due := due + draw.expovariate(self.plan.rate)) < self.plan.seconds:
            await asyncio.sleep(max(0.0, self.began + due - time.monotonic()))
            domain = self.plan.domain_at(due)
            stream = asyncio.create_task(self._request(domain, draw.choice(prompts(domain)), draw.randrange(2**31)))
            streams.add(stream)
            stream.add_done_callback(streams.discard)
        if streams:
            await asyncio.gather(*streams)
        teller.cancel()
        return self._summary()

    def _summary(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began
        summary = {"model": self.model, "seconds": round(seconds, 1)} | self.total.shown(seconds)
        summary["domains"] = {
            name: f.shown(self.plan.seconds / len(self.plan.domains)) for name, f in self.by_domain.items()
        }
        summary["errors"] = self.total.errors
        if self.tell is not None:
            self.tell(f"in all    {_line(self.total.shown(seconds))}")
            for error, count in self.total.errors.items():
                self.tell(f"{count} x {error}")
        return summary

    async def _request(self, domain: str, prompt: str, seed: int) -> None:
        async with self._places:
            try:
                await self._stream(domain, prompt, seed)
            except (aiohttp.ClientError, TimeoutError, _Failed) as error:
                for figures in (self.total, self.second, self.by_domain[domain]):
                    figures.fail(f"{type(error).__name__}: {error}"[:200])
            else:
                for figures in (self.total, self.second, self.by_domain[domain]):
                    figures.done += 1

    async def _stream(self, domain: str, prompt: str, seed: int) -> None:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.plan.max_tokens,
            "temperature": 0.8,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        last, finished = time.monotonic(), False
        first = True
        async with self.http.post(f"{self.plan.api}/v1/chat/completions", json=body) as answer:
            if answer.status != 200:
                raise _Failed(f"{answer.status} {(await answer.text())[:150]}")
            async for raw in answer.content:
                if not raw.startswith(b"data: ") or raw.startswith(b"data: [DONE]"):
                    continue
                chunk = orjson.loads(raw[6:])
                if "error" in chunk:
                    raise _Failed(str(chunk["error"].get("message")))
                now = time.monotonic()
                if chunk.get("usage"):
                    self.total.tokens += chunk["usage"]["completion_tokens"]
                    self.by_domain[domain].tokens += chunk["usage"]["completion_tokens"]
                    continue
                self.second.tokens += 1  # about: a chunk is mostly a token
                for figures in (self.total, self.second, self.by_domain[domain]):
                    (figures.first if first else figures.between).append(now - last)
                last, first = now, False
                finished = finished or any(c.get("finish_reason") for c in chunk["choices"])
        if not finished:
            raise _Failed("the stream ended without a finish")

    async def _tell(self) -> None:
        while self.tell is not None:
            await asyncio.sleep(1.0)
            figures, self.second = self.second, Figures()
            elapsed = time.monotonic() - self.began
            balance = await self._balance()
            self.tell(f"{elapsed:5.0f} s  {self.plan.domain_at(elapsed):<6} {_line(figures.shown(1.0))}  {balance}")

    async def _balance(self) -> str:
        if not self.plan.monitor:
            return ""
        with suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            async with self.http.get(f"{self.plan.monitor}/state", timeout=aiohttp.ClientTimeout(total=0.5)) as answer:
                groups = (await answer.json())["groups"].values()
            shown = [f"epoch {g['epoch']}.{g['instalment']} balance {g['balance_recent'] or 0:.3f}" for g in groups]
            return ", ".join(shown)
        return "monitor silent"


class _Failed(Exception):
    """A request that was not answered as it should."""


def _line(shown: dict[str, Any]) -> str:
    return (
        f"{shown['done']:4d} done {shown['failed']:2d} failed {shown['tokens_per_second']:7.1f} tok/s"
        f"  ttft {shown['ttft_ms']['p50'] or 0:6.1f}/{shown['ttft_ms']['p99'] or 0:6.1f} ms"
        f"  itl {shown['itl_ms']['p50'] or 0:5.1f}/{shown['itl_ms']['p99'] or 0:5.1f} ms"
    )
