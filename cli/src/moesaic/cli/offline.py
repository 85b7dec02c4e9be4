"""What `plan` and `replay` share: the case that a command line describes, policies' answers to it, what these do, the table."""

from __future__ import annotations

import argparse
import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moesaic.cli.errors import Stop
from moesaic.planner.cost import Cost
from moesaic.planner.formats import FormatError, Recording, read_load, read_placement
from moesaic.planner.layout import hold_of, state_of
from moesaic.planner.policy import Hold, Policy, Problem, ProblemError, check, named
from moesaic.planner.predict import Outlook, drawn, even, outlook, shared_out
from moesaic.planner.topology import Groups, Topology, sources
from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.dispatch import Prices
from moesaic.shared.placement import State, in_order

STEPS = 8
"""Steps drawn to score a placement on."""
EVENLY = {"eplb"}
"""Policies made for engines that split an expert's tokens evenly over its copies; others are scored as dispatched by step."""
LARGEST = 1 << 27
"""Layers x experts x ranks that are still planned for."""
WORDS = {"policy", "split"}
"""Columns that hold no numbers."""

Row = dict[str, Any]
"""A policy's figures, as in the JSON output."""


@dataclass(frozen=True)
class Case:
    """A recorded load, the ranks it is to run on, and who plans. W windows, L layers, E experts, R ranks."""

    source: str
    load: Ints
    """Tokens of the selected windows `[W, L, E]`."""
    steps: Ints
    """Engine steps in each `[W]`, at least 1."""
    numbers: list[int]
    """Of these windows in the recording; those without a token are left out."""
    live: Hold
    slots: Ints
    """Per rank, all layers together `[R]`."""
    cost: Cost
    policies: dict[str, Policy]
    max_moves: int | None
    topology: Topology | None
    groups: Groups | None
    slot_bytes: int | None

    @property
    def tokens(self) -> Cost:
        """By which a whole window is judged: tokens over speed."""
        return replace(self.cost, token=1.0, expert=0.0, fixed=0.0)

    @property
    def expected(self) -> Floats:
        """Tokens per step `[L, E]`, over all windows."""
        return np.asarray(self.load.sum(axis=0) / self.steps.sum())

    def per_step(self, window: int) -> Floats:
        """Expected tokens per step `[L, E]` in one of the windows."""
        return np.asarray(self.load[window] / self.steps[window])

    def drawn(self, load: Floats, seed: int) -> Ints:
        """Steps `[S, L, E]` with these expected tokens, the same for every policy."""
        return drawn(load, STEPS, seed=seed)

    def problem(self, load: Floats, live: Hold) -> Problem:
        """To plan for expected tokens per step `[L, E]`. Raises ProblemError."""
        active = 1.0 - np.exp(-load) if self.cost.expert else None
        return Problem(
            load,
            live,
            self.slots,
            self.cost,
            active=active,
            max_moves=self.max_moves,
            topology=self.topology,
            groups=self.groups,
        )

    def ask(self, name: str, load: Floats, live: Hold, *, runs: int = 1) -> Answer | str:
        """A policy's valid answer, of which the last of `runs` is timed, or why there is none."""
        try:
            problem = self.problem(load, live)
            for _ in range(runs):
                begin = time.perf_counter()
                hold = self.policies[name](problem)
                ms = (time.perf_counter() - begin) * 1e3
            check(problem, hold)
        except ProblemError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a policy is exchangeable code: its bugs end its row, not the table
            return f"{type(error).__name__}: {error}"
        return Answer(name, problem, hold, ms)

    def stay(self) -> Answer:
        """Nothing planned: the placement to start from, for the load of all windows."""
        return Answer("live", self.problem(self.expected, self.live), self.live)

    def moved(self, answer: Answer) -> dict[str, Any]:
        """What an answer moves."""
        live, hold = answer.problem.live, answer.hold
        moves = int(np.count_nonzero(hold & ~live))
        return {
            "moves": moves,
            "moves_per_layer": moves / len(hold),
            "moves_across_nodes": sources(live, hold, self.topology)[1] if self.topology else None,
            "bytes": moves * self.slot_bytes if self.slot_bytes else None,
        }

    def shown(self) -> dict[str, Any]:
        """As in the JSON output."""
        layers, experts, ranks = self.live.shape
        return {
            "load": self.source,
            "windows": [self.numbers[0], self.numbers[-1] + 1],
            "windows_with_tokens": len(self.numbers),
            "steps": int(self.steps.sum()),
            "layers": layers,
            "experts": experts,
            "ranks": ranks,
            "slots": self.slots.tolist(),
            "cost_unit": self.cost.unit,
            "scored_steps": STEPS,
        }


@dataclass(frozen=True)
class Answer:
    """A placement that a policy wants."""

    name: str
    problem: Problem
    hold: Hold
    ms: float | None = None
    """What planning took; None: nothing was planned."""

    @property
    def split(self) -> Literal["even", "dispatch"]:
        """How the engines that the policy is for spread an expert's tokens over its copies."""
        return "even" if self.name in EVENLY else "dispatch"

    @cached_property
    def shares(self) -> Ints:
        """That level the load which was planned for `[L, E, R]`."""
        return shared_out(self.problem.load, self.hold, self.problem.cost)

    @property
    def state(self) -> State:
        """To be written."""
        return state_of(self.hold, self.shares)

    @property
    def replicas(self) -> Ints:
        """Copies beyond the first of each expert, by layer `[L]`."""
        return np.asarray(self.hold.sum(axis=(1, 2)) - self.hold.shape[1])

    @property
    def rank_load(self) -> Floats:
        """Part of each layer's load on each rank, 1 where it is even `[L, R]`."""
        parts = (self.hold if self.split == "even" else self.shares).astype(np.float64)
        parts /= parts.sum(axis=2, keepdims=True)
        by_rank = np.einsum("le,ler->lr", self.problem.load, parts)
        mean = by_rank.mean(axis=1, keepdims=True)
        return np.asarray(np.divide(by_rank, mean, out=np.ones_like(by_rank), where=mean > 0))

    def under(self, counts: Ints, cost: Cost) -> dict[str, dict[str, float]]:
        """What steps' tokens `[S, L, E]` do to it, by how they are split over copies. Dispatch levels tokens, as engines do."""
        by_step = outlook(counts, self.hold, cost, self.shares, Prices.tokens(cost.speed.size))
        return {"even": _figures(even(counts, self.hold, cost)), "dispatch": _figures(by_step)}


def _figures(seen: Outlook) -> dict[str, float]:
    return {
        "balance": seen.balance,
        "worst": seen.worst,
        "worst_layer": int(np.argmin(seen.layers)),
        "cost": seen.cost,
    }


def case_of(args: argparse.Namespace) -> Case:
    """Read and check everything that the options name. Raises Stop."""
    policies = _policies(args.policy)
    try:
        state = read_placement(args.live, ranks=args.ranks, format=args.live_format) if args.live else None
        recording = read_load(args.load, placement=state, format=args.load_format)
    except FormatError as error:
        raise Stop(str(error), 2) from error
    if args.live is None and args.live_format is not None:
        raise Stop("--live-format goes with --live FILE", 2)
    first, end = _windows(args.windows, len(recording.load))
    numbers = [number for number in range(first, end) if recording.load[number].any()]
    if not numbers:
        raise Stop(f"{args.load}: the windows {first}:{end} are without a token: nothing to plan from", 2)
    live = _live(args.ranks, state, recording)
    ranks = live.shape[2]
    topology = _topology(args.nodes, ranks)
    case = Case(
        source=str(args.load),
        load=recording.load[numbers],
        steps=np.maximum(1, recording.steps[numbers]),
        numbers=numbers,
        live=live,
        slots=_slots(args, live),
        cost=_cost(args, ranks),
        policies=policies,
        max_moves=_least(args.max_moves, 0, "--max-moves"),
        topology=topology,
        groups=_groups(args, topology, live.shape[1]),
        slot_bytes=_least(args.slot_bytes, 1, "--slot-bytes"),
    )
    try:
        case.problem(case.expected, live)
    except ProblemError as error:
        raise Stop(f"{args.load} on {ranks} ranks of {case.slots.max()} slots: {error}", 2) from error
    return case


def _policies(text: str) -> dict[str, Policy]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise Stop("--policy names no policy", 2)
    try:
        return {name: named(name) for name in names}
    except LookupError as error:
        raise Stop(f"--policy: {error.args[0]}", 2) from error


def _windows(text: str, count: int) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{0,9}):(\d{0,9})", text)
    if match is None:
        raise Stop(f"--windows {text}: expected A:B, numbers from 0, each may be missing", 2)
    first, end = int(match[1] or 0), int(match[2] or count)
    if not first < end <= count:
        raise Stop(f"--windows {text}: there are the windows 0:{count}, and A is below B", 2)
    return first, end


def _live(ranks: int | None, state: State | None, recording: Recording) -> Hold:
    layers, experts = recording.shape
    if state is not None:
        return hold_of(state, experts)
    if ranks is None:
        raise Stop("give --ranks R, or a placement with --live", 2)
    if ranks < 1 or layers * experts * ranks > LARGEST:
        raise Stop(f"--ranks {ranks}: expected from 1 to {LARGEST // (layers * experts)} for such a load", 2)
    return hold_of(in_order(layers, experts, ranks), experts)


def _slots(args: argparse.Namespace, live: Hold) -> Ints:
    layers, experts, ranks = live.shape
    if args.extra is not None:
        each = -(-layers * experts // ranks) + (_least(args.extra, 0, "--extra") or 0)
    elif args.slots is not None:
        if not 0 < args.slots <= experts:
            raise Stop(f"--slots {args.slots:g}: expected above 0, at most the {experts} experts of a layer", 2)
        each = int(args.slots * layers + 1e-6)
    elif args.live is not None:
        return np.asarray(live.sum(axis=(0, 1), dtype=np.int64))
    else:
        raise Stop("give --slots S (per rank and layer) or --extra N (per rank), or a placement with --live", 2)
    return np.full(ranks, each, dtype=np.int64)


def _least(value: int | None, least: int, option: str) -> int | None:
    if value is not None and value < least:
        raise Stop(f"{option} {value}: expected at least {least}", 2)
    return value


def _topology(nodes: int | None, ranks: int) -> Topology | None:
    if nodes is None:
        return None
    if nodes < 1 or ranks % nodes:
        raise Stop(f"--nodes {nodes}: {ranks} ranks do not make {nodes} nodes of equal size", 2)
    return Topology(np.arange(ranks) * nodes // ranks)


def _groups(args: argparse.Namespace, topology: Topology | None, experts: int) -> Groups | None:
    if args.groups is None:
        if args.groups_per_token is not None or args.top_k is not None:
            raise Stop("--groups-per-token and --top-k go with --groups G", 2)
        return None
    if topology is None or args.groups_per_token is None:
        raise Stop("--groups G goes with --groups-per-token M and --nodes N", 2)
    if args.groups < 1 or experts % args.groups:
        raise Stop(f"--groups {args.groups}: {experts} experts do not make {args.groups} groups of equal size", 2)
    if not 1 <= args.groups_per_token <= args.groups:
        raise Stop(f"--groups-per-token {args.groups_per_token}: expected from 1 to {args.groups}", 2)
    if args.top_k is None:
        return Groups(args.groups, args.groups_per_token)
    if not 1 <= args.top_k <= experts:
        raise Stop(f"--top-k {args.top_k}: expected from 1 to {experts}", 2)
    return Groups(args.groups, args.groups_per_token, top_k=args.top_k)


def _cost(args: argparse.Namespace, ranks: int) -> Cost:
    speed = _speeds(args.speeds, ranks)
    if args.token_ms is None:
        if args.expert_ms is not None or args.fixed_ms is not None:
            raise Stop("--expert-ms and --fixed-ms go with --token-ms MS", 2)
        return replace(Cost.tokens(ranks), speed=speed)
    try:
        return Cost(speed, token=args.token_ms, expert=args.expert_ms or 0.0, fixed=args.fixed_ms or 0.0, unit="ms")
    except ValueError as error:
        raise Stop(f"--token-ms, --expert-ms, --fixed-ms: {error}", 2) from error


def _speeds(text: str | None, ranks: int) -> Floats:
    if text is None:
        return np.ones(ranks)
    try:
        speed = np.array([float(part) for part in text.split(",")])
    except ValueError as error:
        raise Stop(f"--speeds: {error}", 2) from error
    if speed.size != ranks or not np.isfinite(speed).all() or not (speed > 0).all():
        raise Stop(f"--speeds: expected {ranks} numbers above 0, one per rank, found {text}", 2)
    return speed


def as_json(case: Case, rows: Sequence[Row]) -> str:
    """One object."""
    return orjson.dumps(case.shown() | {"policies": rows}, option=orjson.OPT_INDENT_2).decode()


def title(case: Case) -> str:
    """What was planned for, in one line."""
    shown = case.shown()
    slots = sorted(set(shown["slots"]))
    room = f"{slots[0]}" if len(slots) == 1 else f"{slots[0]} to {slots[-1]}"
    first, end = shown["windows"]
    return (
        f"{case.source}: windows {first}:{end}, {shown['steps']} steps, {shown['layers']} layers, "
        f"{shown['experts']} experts; {shown['ranks']} ranks of {room} slots "
        f"({float(case.slots.mean()) / shown['layers']:.2f} per layer)"
    )


def table(case: Case, rows: Sequence[Row], columns: dict[str, Callable[[Row], str]], notes: Sequence[str]) -> str:
    """For people: a line per policy, without columns that are empty; then what went wrong, which has no room in columns."""
    like = Console()
    out = Console(file=io.StringIO(), width=max(200, like.width), force_terminal=like.is_terminal)
    good = [row for row in rows if "error" not in row]
    cells = {head: [cell(row) for row in good] for head, cell in columns.items()}
    grid = Table(box=None, pad_edge=False, header_style="dim")
    full = {head: column for head, column in cells.items() if any(column)}
    for head in full:
        grid.add_column(head, justify="left" if head in WORDS else "right")
    for line in zip(*full.values(), strict=True):
        grid.add_row(*(Text(cell) for cell in line))
    out.print(Text(title(case), style="bold"), soft_wrap=True)
    out.print(grid)
    for row in rows:
        if "error" in row:
            out.print(Text(f"{row['policy']} failed: {row['error']}", style="red"), soft_wrap=True)
    for note in [*notes, *_notes(case, good)]:
        out.print(Text(note, style="dim"), soft_wrap=True)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().rstrip("\n")


def _notes(case: Case, rows: Sequence[Row]) -> list[str]:
    notes = [f"step cost in {case.cost.unit}: the busiest rank's, summed over the layers"]
    if (case.steps == 1).all():
        notes.append("the recording does not tell its steps: each window counts as one step")
    if len(case.numbers) < case.numbers[-1] + 1 - case.numbers[0]:
        notes.append(f"only the {len(case.numbers)} windows with tokens count")
    limit = case.max_moves
    over = [row["policy"] for row in rows if limit is not None and _most_moves(row) > limit]
    if over:
        notes.append(f"{', '.join(over)} moved more than --max-moves: not every policy knows such a limit")
    return notes


def _most_moves(row: Row) -> int:
    """Of one plan."""
    return max(int(plan["moves"]) for plan in row.get("plans", [row]))
