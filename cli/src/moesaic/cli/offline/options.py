"""The case that a command line describes. Whatever cannot be is one line that names the option or the file."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

import numpy as np

from moesaic.cli.errors import Stop
from moesaic.cli.offline.case import Case
from moesaic.planner.cost import Cost
from moesaic.planner.formats import FormatError, Recording, read_load, read_placement
from moesaic.planner.layout import hold_of
from moesaic.planner.policy import Hold, Policy, ProblemError, named
from moesaic.planner.topology import Groups, Topology
from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.placement import State, in_order

LARGEST = 1 << 27
"""Layers x experts x ranks that are still planned for."""


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
