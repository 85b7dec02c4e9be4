"""Drives load over HTTP: arrivals, streams, figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from moesaic.cli.errors import Stop
from moesaic.cli.figures import Figures, line
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

    def seconds_of(self, domain: str) -> float:
        """How long it has its turns, in all."""
        return self.seconds * self.domains.count(domain) / len(self.domains)

    def domain_at(self, elapsed: float) -> str:
        """The domain whose turn it is."""
        turn = int(elapsed / self.seconds * len(self.domains))
        return self.domains[min(turn, len(self.domains) - 1)]


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
        """Arrivals until the time is over, then the rest of the streams. Cut short, it tells what came of it so far."""
        teller = asyncio.create_task(self._tell())
        try:
            await self._arrivals()
        except asyncio.CancelledError:
            self._summary()
            raise
        finally:
            teller.cancel()
        return self._summary()

    async def _arrivals(self) -> None:
        draw = random.Random(self.plan.seed)
        due = 0.0
        async with asyncio.TaskGroup() as streams:
            while (due := due + draw.expovariate(self.plan.rate)) < self.plan.seconds:
                await asyncio.sleep(max(0.0, self.began + due - time.monotonic()))
                domain = self.plan.domain_at(due)
                streams.create_task(self._request(domain, draw.choice(prompts(domain)), draw.randrange(2**31)))

    def _summary(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began
        summary = {"model": self.model, "seconds": round(seconds, 1)} | self.total.shown(seconds)
        domains = {name: figures.shown(self.plan.seconds_of(name)) for name, figures in self.by_domain.items()}
        if self.tell is not None:
            for name, shown in (*domains.items(), ("all", summary)):
                self.tell(f"in all  {name:<6} {line(shown)}")
            for error, count in self.total.errors.items():
                self.tell(f"{count} x {error}")
        return summary | {"domains": domains, "errors": self.total.errors}

    async def _request(self, domain: str, prompt: str, seed: int) -> None:
        async with self._places:
            try:
                await self._stream(domain, prompt, seed)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                for figures in (self.total, self.second, self.by_domain[domain]):
                    figures.fail((str(error) or type(error).__name__)[:200])
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
            self.tell(f"{elapsed:5.0f} s  {self.plan.domain_at(elapsed):<6} {line(figures.shown(1.0))}  {balance}")

    async def _balance(self) -> str:
        if not self.plan.monitor:
            return ""
        with suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            async with self.http.get(f"{self.plan.monitor}/state", timeout=aiohttp.ClientTimeout(total=0.5)) as answer:
                groups = (await answer.json())["groups"].values()
            shown = [f"epoch {g['epoch']}.{g['instalment']} balance {g['balance_recent'] or 0:.3f}" for g in groups]
            return ", ".join(shown)
        return "monitor silent"


class _Failed(ValueError):
    """A request that was not answered as it should."""
