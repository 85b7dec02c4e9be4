"""What is printed: the title, a table with a line per policy, notes; or JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from moesaic.cli.offline.case import Case, Row

WORDS = {"policy", "split"}
"""Columns that hold no numbers."""


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
