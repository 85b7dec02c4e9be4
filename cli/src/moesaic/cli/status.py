"""`moesaic status`: engines, groups, balance, hot experts, the last placement and what it gained."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import orjson

from moesaic.cli import meshfile
from moesaic.cli.errors import Stop
from moesaic.cli.status_text import render
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bus, BusDown, BusError, Delivery, ServiceError
from moesaic.shared.messages import BadMessage, EngineStatus, decode
from moesaic.shared.nats_bus import connect

LISTEN_S = 1.5
"""Engines say how they are more often than that."""
CONNECT_S = 2.0

EXAMPLES = """\
examples:
  moesaic status                                  the mesh of `moesaic up` in this folder or one above it
  moesaic status --nats nats://10.0.0.5:4222      any other
  moesaic status --json                           for machines; exit status 0: it serves
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line."""
    parse = commands.add_parser(
        "status",
        help="what is where, and how balanced",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("--nats", help="URL of the bus (default: MOESAIC_NATS, else the mesh of this folder)")
    parse.add_argument("--json", action="store_true", help="for machines")
    parse.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: something is served; 1: nothing is, or the bus is down."""
    log.configure("status", "error")
    url = meshfile.nats_url(args.nats)
    if url is None:
        raise Stop("no mesh here: run it in the folder of `moesaic up`, or give --nats URL")
    report = asyncio.run(gather(url))
    print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if args.json else render(report))
    return 0 if report["serving"] else 1


async def gather(url: str) -> dict[str, Any]:
    """Everything that can be known; what is down is said, not raised."""
    report: dict[str, Any] = {"nats": url, "bus": "down", "serving": False, "groups": {}, "down": ["bus"]}
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(CONNECT_S):
                bus = await stack.enter_async_context(connect("status", url))
            await _ask(bus, report)
        except (TimeoutError, BusDown):
            report |= {"bus": "down", "down": ["bus"], "api": await _health()}
    report["serving"] = any(
        engine["state"] == "serving" and not engine["silent"]
        for group in report["groups"].values()
        for engine in group["engines"]
    )
    return report


async def _ask(bus: Bus, report: dict[str, Any]) -> None:
    report["bus"], report["down"] = "up", []
    monitor, planner = await asyncio.gather(
        _service(bus, "moesaic-monitor", "state"), _service(bus, "moesaic-planner", "status")
    )
    for name, answer in (("monitor", monitor), ("planner", planner)):
        if answer is None:
            report["down"].append(name)
    report["planner"] = planner
    report["groups"] = monitor["groups"] if monitor else await _heard(bus)


async def _service(bus: Bus, name: str, endpoint: str) -> Any:
    try:
        return orjson.loads(await bus.request(subjects.service(name, endpoint), b"{}", timeout=CONNECT_S))
    except (BusError, ServiceError):
        return None


async def _heard(bus: Bus) -> dict[str, Any]:
    """Without a monitor: what the engines say themselves."""
    groups: dict[str, Any] = {}

    async def heard(delivery: Delivery) -> None:
        try:
            status = decode(delivery.data, EngineStatus)
        except BadMessage:
            return
        group = groups.setdefault(status.group, {"engines": {}, "model": status.model, "ranks": status.ranks})
        group["engines"][status.source.producer] = msgspec.to_builtins(status) | {"silent": False}
        group |= {"generation": status.generation, "epoch": status.epoch, "instalment": status.instalment}

    await bus.subscribe(subjects.status(), heard)
    await asyncio.sleep(LISTEN_S)
    return {name: group | {"engines": list(group["engines"].values())} for name, group in groups.items()}


async def _health() -> str:
    """What the API says while the bus is down."""
    mesh = meshfile.find(Path.cwd())
    if mesh is None:
        return "unknown"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http,
            http.get(f"{mesh.api}/health") as answer,
        ):
            return f"{mesh.api} answers {answer.status}"
    except (aiohttp.ClientError, TimeoutError):
        return f"{mesh.api} does not answer"
