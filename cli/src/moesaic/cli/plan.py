"""`moesaic plan`: where to put experts for a recorded load, and what that would gain. Needs no mesh and no device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from moesaic.cli.errors import Stop
from moesaic.planner.formats import LOAD_FORMATS, PLACEMENT_FORMATS, FormatError, write_placement

if TYPE_CHECKING:
    from moesaic.cli.offline import Answer, Case, Row
    from moesaic.shared.arrays import Ints

EXAMPLES = """\
examples:
  moesaic plan --load windows.ndjson --ranks 32 --slots 9                  from experts in order
  moesaic plan --load load.npz --live map.json --policy omni,eplb          from a live placement, in the slots it has
  moesaic plan --load load.npz --ranks 16 --extra 29 --plot pictures       29 slots per rank beyond one copy of all
  moesaic plan --load dumps/ --live pattern.npy --max-moves 200 --out new.npy
  moesaic plan --load load.npz --ranks 32 --slots 9 --out map.json --out-format ascend --pad

"""
FORMATS = """\
recorded load (--load-format, told by content if not given):
"""
FORMATS += "".join(f"  {name:<10}{what}\n" for name, what in LOAD_FORMATS.items())
FORMATS += "\nplacements (--live-format, told by content if not given; --out-format, by the name's ending):\n"
FORMATS += "".join(f"  {name:<10}{what}\n" for name, what in PLACEMENT_FORMATS.items())
FORMATS += "\nexit status: 0 all went well; 1 a policy failed, the others are shown; 2 a file or an option is wrong\n"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line."""
    parse = commands.add_parser(
        "plan",
        help="plan a placement from a recorded load",
        description=__doc__,
        epilog=EXAMPLES + FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options(parse, policies="omni")
    parse.add_argument("--out", type=Path, metavar="FILE", help="write the placement there (one policy)")
    parse.add_argument("--out-format", metavar="FORMAT", help=f"one of {', '.join(PLACEMENT_FORMATS)}")
    parse.add_argument("--pad", action="store_true", help="fill uneven ranks with duplicates where --out-format must")
    parse.set_defaults(run=run)


def options(parse: argparse.ArgumentParser, *, policies: str) -> None:
    """What `plan` and `replay` have in common."""
    load = parse.add_argument_group("load")
    load.add_argument("--load", type=Path, required=True, metavar="PATH", help="recorded load: a file or folder")
    load.add_argument("--load-format", metavar="FORMAT", help=f"one of {', '.join(LOAD_FORMATS)}")
    load.add_argument("--windows", default=":", metavar="A:B", help="from window A up to, without, B (default: all)")
    room = parse.add_argument_group("ranks and slots")
    room.add_argument("--ranks", type=int, metavar="R", help="how many (default: as --live has)")
    size = room.add_mutually_exclusive_group()
    size.add_argument(
        "--slots", type=float, metavar="S", help="per rank and layer, on average (default: as many as --live takes)"
    )
    size.add_argument(
        "--extra", type=int, metavar="N", help="slots per rank, over all layers, beyond one of each expert"
    )
    room.add_argument(
        "--live", type=Path, metavar="FILE", help="the placement to start from (default: experts in order)"
    )
    room.add_argument("--live-format", metavar="FORMAT", help=f"one of {', '.join(PLACEMENT_FORMATS)}")
    room.add_argument("--nodes", type=int, metavar="N", help="ranks are on N nodes, in order, equally many on each")
    room.add_argument("--groups", type=int, metavar="G", help="experts are in G groups (needs --nodes)")
    room.add_argument("--groups-per-token", type=int, metavar="M", help="of which a token takes experts from M")
    room.add_argument("--top-k", type=int, metavar="K", help="experts per token, with --groups (default 8)")
    how = parse.add_argument_group("planning")
    how.add_argument("--policy", default=policies, metavar="NAMES", help=f"comma separated (default {policies})")
    how.add_argument("--max-moves", type=int, metavar="N", help="copies that one plan may move")
    how.add_argument(
        "--token-ms", type=float, metavar="MS", help="what a token costs a rank, instead of counting tokens"
    )
    how.add_argument("--expert-ms", type=float, metavar="MS", help="what an active expert costs, with --token-ms")
    how.add_argument("--fixed-ms", type=float, metavar="MS", help="what a layer costs in any case, with --token-ms")
    how.add_argument("--speeds", metavar="LIST", help="of the ranks, comma separated: 1,1,0.8,... (default: alike)")
    how.add_argument("--slot-bytes", type=int, metavar="N", help="bytes of one expert of one layer: shows bytes moved")
    show = parse.add_argument_group("output")
    show.add_argument("--plot", type=Path, metavar="FOLDER", help="write PNG files there (needs moesaic[plots])")
    show.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """0: every policy has an answer."""
    _check_out(args)
    check_installed(args)
    from moesaic.cli import offline, plots  # noqa: PLC0415 # compiled code, which no other command needs

    case = offline.case_of(args)
    tried = {name: case.ask(name, case.expected, case.live, runs=2) for name in case.policies}
    answers = [case.stay(), *(answer for answer in tried.values() if not isinstance(answer, str))]
    steps = case.drawn(case.expected, seed=0)
    rows = [row(case, answer, steps) for answer in answers]
    rows += [{"policy": name, "error": why} for name, why in tried.items() if isinstance(why, str)]
    failed = len(answers) <= len(tried)
    if args.out is not None and not failed:
        _write(args, answers[-1])
    if args.plot is not None:
        plots.rank_load(args.plot, {answer.name: answer.rank_load for answer in answers})
        plots.replicas(args.plot, {answer.name: answer.replicas for answer in answers})
    print(offline.as_json(case, rows) if args.json else offline.table(case, rows, COLUMNS, NOTES))
    return int(failed)


def check_installed(args: argparse.Namespace) -> None:
    """Raise Stop where what is wanted needs an extra, before anything is planned."""
    if find_spec("numba") is None:
        raise Stop("planning needs numba: pip install 'moesaic[planner]'", 2)
    if args.plot is None:
        return
    if find_spec("matplotlib") is None:
        raise Stop("--plot needs matplotlib: pip install 'moesaic[plots]'", 2)
    if args.plot.exists() and not args.plot.is_dir():
        raise Stop(f"--plot {args.plot}: is not a folder", 2)


def _check_out(args: argparse.Namespace) -> None:
    if args.out is None and (args.out_format is not None or args.pad):
        raise Stop("--out-format and --pad go with --out FILE", 2)
    if args.out is not None and "," in args.policy.strip(", "):
        raise Stop(f"--out takes the plan of one policy, --policy names {args.policy}", 2)
    if args.out_format is not None and args.out_format not in PLACEMENT_FORMATS:
        raise Stop(f"--out-format {args.out_format} is unknown, expected one of {', '.join(PLACEMENT_FORMATS)}", 2)


def _write(args: argparse.Namespace, answer: Answer) -> None:
    try:
        write_placement(args.out, answer.state, format=args.out_format, pad=args.pad)
    except FormatError as error:
        raise Stop(str(error), 2) from error


def row(case: Case, answer: Answer, steps: Ints) -> Row:
    """A policy's figures, as in the JSON output."""
    return {
        "policy": answer.name,
        "split": answer.split,
        "window": answer.under(case.load.sum(axis=0)[None], case.tokens),
        "step": answer.under(steps, case.cost),
        **case.moved(answer),
        "planning_ms": answer.ms,
    }


def _worst(row: Row) -> str:
    seen = row["window"][row["split"]]
    return f"{seen['worst_layer']}: {seen['worst']:.3f}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "policy": lambda row: row["policy"],
    "split": lambda row: row["split"],
    "window even": lambda row: f"{row['window']['even']['balance']:.3f}",
    "window dispatch": lambda row: f"{row['window']['dispatch']['balance']:.3f}",
    "worst layer": _worst,
    "in steps": lambda row: f"{row['step'][row['split']]['balance']:.3f}",
    "step cost": lambda row: f"{row['step'][row['split']]['cost']:,.1f}",
    "moves": lambda row: f"{row['moves']:,}",
    "per layer": lambda row: f"{row['moves_per_layer']:.1f}",
    "across nodes": lambda row: "" if row["moves_across_nodes"] is None else f"{row['moves_across_nodes']:,}",
    "MiB": lambda row: "" if row["bytes"] is None else f"{row['bytes'] / 2**20:,.1f}",
    "planning ms": lambda row: "-" if row["planning_ms"] is None else f"{row['planning_ms']:.1f}",
}
NOTES = ["worst layer, in steps and step cost are of the split named; planning ms is of a second run"]
