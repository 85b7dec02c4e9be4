"""`moesaic replay`: what policies would have done with a recorded load, each plan judged by the window after it.

At window t a policy sees window t alone, starts from its own placement of the window before, and is scored on window t + 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moesaic.cli.errors import Stop
from moesaic.cli.plan import FORMATS, check_installed, options

if TYPE_CHECKING:
    from moesaic.cli.offline import Answer, Case, Row

EXAMPLES = """\
examples:
  moesaic replay --load windows.ndjson --ranks 32 --slots 9                        omni, eplb and static
  moesaic replay --load load.npz --ranks 32 --slots 9 --policy omni --max-moves 300
  moesaic replay --load load.npz --live pattern.npy --windows 10:40 --plot pictures
  moesaic replay --load counts.json --ranks 16 --extra 29 --nodes 2 --json         for machines

"""
SAY_EVERY_S = 2.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command line."""
    parse = commands.add_parser(
        "replay",
        help="compare policies on a recorded load",
        description=__doc__,
        epilog=EXAMPLES + FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options(parse, policies="omni,eplb,static")
    parse.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: every policy has an answer in every window."""
    check_installed(args)
    from moesaic.cli import offline, plots  # noqa: PLC0415 # compiled code, which no other command needs

    case = offline.case_of(args)
    if len(case.numbers) < 2:
        raise Stop(f"{args.load}: a replay needs at least 2 windows with tokens, found {len(case.numbers)}", 2)
    progress = Progress((len(case.numbers) - 1) * len(case.policies))
    walks = [walk(case, name, progress) for name in case.policies]
    rows = [row(each) for each in walks]
    last = {each.name: each.last for each in walks if each.last is not None}
    if args.plot is not None and last:
        plots.over_time(args.plot, series(walks))
        plots.replicas(args.plot, {name: answer.replicas for name, answer in last.items()})
    print(offline.as_json(case, rows) if args.json else offline.table(case, rows, COLUMNS, NOTES))
    return int(any(each.error is not None for each in walks))


@dataclass
class Walk:
    """One policy's way through the windows."""

    name: str
    plans: list[Row] = field(default_factory=list)
    last: Answer | None = None
    error: str | None = None


class Progress:
    """Says on stderr how far it is, every few seconds."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._done = 0
        self._said = clock()

    def step(self, what: str) -> None:
        """One more is done."""
        self._done += 1
        if self._clock() - self._said >= SAY_EVERY_S:
            self._said = self._clock()
            sys.stderr.write(f"moesaic: {what}, {self._done} of {self._total} plans\n")


def walk(case: Case, name: str, progress: Progress) -> Walk:
    """From window to window, each plan from the one before, until the policy fails or they end."""
    seen = Walk(name)
    for index, number in enumerate(case.numbers[:-1]):
        live = case.live if seen.last is None else seen.last.hold
        answer = case.ask(name, case.per_step(index), live)
        if isinstance(answer, str):
            seen.error = f"window {number}: {answer}"
            break
        seen.last = answer
        seen.plans.append(plan(case, answer, index))
        progress.step(f"{name}: window {number}")
    return seen


def plan(case: Case, answer: Answer, index: int) -> Row:
    """The figures of one plan: on its own window (fit), on the next one as a whole and in steps."""
    return {
        "window": case.numbers[index],
        "fit": answer.under(case.load[index : index + 1], case.tokens),
        "next": answer.under(case.load[index + 1 : index + 2], case.tokens),
        "step": answer.under(case.drawn(case.per_step(index + 1), seed=index), case.cost),
        **case.moved(answer),
        "planning_ms": answer.ms,
    }


def row(walk: Walk) -> Row:
    """A policy's means over its plans, as in the JSON output. Where moves and times are concerned the first is apart."""
    shown: Row = {"policy": walk.name, "plans": walk.plans}
    if walk.error is not None or walk.last is None:
        return shown | {"error": walk.error}
    split, later = walk.last.split, walk.plans[1:]
    return shown | {
        "split": split,
        "mean": {each: _means(walk.plans, each) for each in ("even", "dispatch")},
        "moves": sum(each["moves"] for each in walk.plans),
        "first_moves_per_layer": walk.plans[0]["moves_per_layer"],
        "moves_per_layer": _mean([each["moves_per_layer"] for each in later]),
        "moves_across_nodes": _mean([each["moves_across_nodes"] for each in later]),
        "bytes": _mean([each["bytes"] for each in later]),
        "planning_ms": statistics.median([each["planning_ms"] for each in later]) if later else None,
    }


def _means(plans: Sequence[Row], split: str) -> dict[str, float]:
    return {
        name: statistics.mean(each[part][split][figure] for each in plans)
        for name, (part, figure) in {
            "fit": ("fit", "balance"),
            "next": ("next", "balance"),
            "worst": ("next", "worst"),
            "step": ("step", "balance"),
            "cost": ("step", "cost"),
        }.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """None where there is nothing, or nothing known."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def series(walks: Sequence[Walk]) -> dict[str, dict[str, tuple[list[int], list[float]]]]:
    """What is drawn: by label, by policy, the windows planned in and the values."""
    lines: dict[str, Callable[[Row, str], float]] = {
        "balance, next window": lambda plan, split: plan["next"][split]["balance"],
        "balance, in its steps": lambda plan, split: plan["step"][split]["balance"],
        "moves per layer": lambda plan, _: plan["moves_per_layer"],
    }
    return {
        label: {
            each.name: ([plan["window"] for plan in each.plans], [value(plan, each.last.split) for plan in each.plans])
            for each in walks
            if each.last is not None
        }
        for label, value in lines.items()
    }


def _cell(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row['mean'][row['split']][key]:.3f}"


def _or(value: float | None, form: str, missing: str = "-") -> str:
    return missing if value is None else format(value, form)


COLUMNS: dict[str, Callable[[Row], str]] = {
    "policy": lambda row: row["policy"],
    "split": lambda row: row["split"],
    "fit": _cell("fit"),
    "next": _cell("next"),
    "worst layer": _cell("worst"),
    "in steps": _cell("step"),
    "step cost": lambda row: f"{row['mean'][row['split']]['cost']:,.1f}",
    "first moves": lambda row: f"{row['first_moves_per_layer']:.1f}",
    "moves": lambda row: _or(row["moves_per_layer"], ".1f"),
    "across nodes": lambda row: _or(row["moves_across_nodes"], ",.1f", ""),
    "MiB": lambda row: _or(row["bytes"] and row["bytes"] / 2**20, ",.1f", ""),
    "planning ms": lambda row: _or(row["planning_ms"], ".1f"),
}
NOTES = [
    "means over the plans: fit on the window planned from; next, worst layer, in steps, step cost on the one after it",
    "balance and cost are of the split named; moves are per layer, of the first plan and of a later one",
    "across nodes and MiB (all layers) and planning ms (median) are of later plans",
]
