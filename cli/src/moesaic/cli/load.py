"""`moesaic load`: real prompts of changing domains over HTTP, and what came of it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import orjson

from moesaic.cli import meshfile
from moesaic.cli.errors import Stop
from moesaic.cli.loadgen import Plan, drive
from moesaic.cli.prompts import domains

EXAMPLES = """\
examples:
  moesaic load --domains code,zh,math --rate 8 --seconds 60    twenty seconds of each
  moesaic load --domains zh --rate 2 --json                    for machines
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line."""
    parse = commands.add_parser(
        "load",
        help="put load of changing domains on a mesh",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("--domains", default="code,zh,math", help="in turn, comma separated (default code,zh,math)")
    parse.add_argument("--rate", type=float, default=8.0, help="requests per second, arriving at random (default 8)")
    parse.add_argument("--seconds", type=float, default=60.0, help="in all, divided over the domains (default 60)")
    parse.add_argument("--max-tokens", type=int, default=64, help="per request (default 64)")
    parse.add_argument("--concurrency", type=int, default=64, help="requests in flight at most (default 64)")
    parse.add_argument("--seed", type=int, default=0, help="of arrivals and prompts (default 0)")
    parse.add_argument("--api", help="URL of the API (default: the mesh of this folder)")
    parse.add_argument("--model", help="served name (default: the first that the API lists)")
    parse.add_argument("--json", action="store_true", help="only the summary, as JSON")
    parse.add_argument("--list", action="store_true", help="show the domains and end")
    parse.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: every request was answered."""
    if args.list:
        print("\n".join(domains()))
        return 0
    summary = asyncio.run(drive(_plan(args), tell=None if args.json else lambda line: print(line, flush=True)))
    if args.json:
        print(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode())
    return 0 if summary["failed"] == 0 and summary["done"] > 0 else 1


def _plan(args: argparse.Namespace) -> Plan:
    wanted = [name.strip() for name in args.domains.split(",") if name.strip()]
    unknown = sorted(set(wanted) - set(domains()))
    if unknown or not wanted:
        raise Stop(f"no domain {', '.join(unknown) or 'given'}: there are {', '.join(domains())}")
    if min(args.rate, args.seconds, args.max_tokens, args.concurrency) <= 0:
        raise Stop("--rate, --seconds, --max-tokens and --concurrency must be above 0")
    mesh = meshfile.find(Path.cwd())
    api = args.api or (mesh.api if mesh else None)
    if api is None:
        raise Stop("no mesh here: run it in the folder of `moesaic up`, or give --api URL")
    return Plan(
        api=api.rstrip("/").removesuffix("/v1"),
        monitor=mesh.monitor if mesh and not args.api else "",
        model=args.model,
        domains=wanted,
        rate=args.rate,
        seconds=args.seconds,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        seed=args.seed,
    )
