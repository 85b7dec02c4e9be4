"""The text of `moesaic status`. Pure."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

HOT = 6
"""Hot experts named."""
COLUMNS = ("engine", "rank", "state", "running", "waiting", "KV", "step ms", "tokens", "switches", "stall ms")
WORDS = {"engine", "state"}
"""Columns that hold no numbers."""


def render(report: dict[str, Any], console: Console | None = None) -> str:
    """The report for people, as the console given (default: stdout's) would show it: colours only on a terminal."""
    like = console or Console()
    out = Console(file=io.StringIO(), width=max(100, like.width), force_terminal=like.is_terminal)
    _say(out, f"bus      {report['nats']} is {report['bus']}", "" if report["bus"] == "up" else "bold red")
    for name in report["down"]:
        if name != "bus":
            _say(out, f"{name} is down", "bold red")
    if "api" in report:
        _say(out, f"api      {report['api']}")
    for name, group in report["groups"].items():
        _group(out, name, group)
    _planner(out, report.get("planner"))
    if not report["groups"] and report["bus"] == "up":
        _say(out, "no engine has been heard")
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().rstrip("\n")


def _say(out: Console, text: str, style: str = "") -> None:
    """A line as it is: reasons may hold what looks like markup."""
    out.print(Text(text, style=style), soft_wrap=True)


def _group(out: Console, name: str, group: dict[str, Any]) -> None:
    _say(out, "")
    _say(
        out,
        f"group    {name}: model {group['model']}, generation {group['generation']}, "
        f"{group['ranks']} rank(s), epoch {group['epoch']}.{group['instalment']}",
        "bold",
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in WORDS else "right")
    for engine in sorted(group["engines"], key=lambda e: (e["rank"], e["source"]["producer"])):
        table.add_row(*(Text(cell) for cell in _engine(engine)))
    out.print(table)
    if group.get("window"):
        _window(out, group["window"], group.get("balance_recent"))
    if group.get("last_placement"):
        _placement(out, group["last_placement"])


def _engine(engine: dict[str, Any]) -> list[str]:
    total = engine["kv_blocks_total"] or 1
    state = "silent" if engine["silent"] else engine["state"]
    return [
        engine["source"]["producer"],
        str(engine["rank"]),
        f"{state} {engine['reason']}".strip(),
        str(engine["running"]),
        str(engine["waiting"]),
        f"{engine['kv_blocks_used'] / total:.0%}",
        f"{engine['step_ms']:.1f}",
        str(engine["generated_tokens"]),
        str(engine["switches"]),
        f"{engine['switch_stall_ms_max']:.2f}",
    ]


def _window(out: Console, window: dict[str, Any], recent: float | None) -> None:
    for phase, figures in window["phases"].items():
        if figures["balance"] is None:
            continue
        text = f"balance  {phase}: {figures['balance']:.3f} of {figures['balance_best']:.3f} possible (tokens)"
        if figures["worst_layer"] is not None:
            text += f", worst layer {figures['worst_layer']} {figures['balance_worst']:.3f}"
        if phase == "decode" and recent is not None:
            text += f", recent windows {recent:.3f}"
        _say(out, text)
    if window["hot"]:
        hot = (f"layer {e['layer']} expert {e['expert']} {e['ratio']:.1f}x" for e in window["hot"][:HOT])
        _say(out, f"hot      {', '.join(hot)}")


def _placement(out: Console, last: dict[str, Any]) -> None:
    gained = ""
    if last["balance_before"] is not None and last["balance_after"] is not None:
        gained = f": balance {last['balance_before']:.3f} -> {last['balance_after']:.3f} ({last['phase']})"
    _say(
        out,
        f"placed   epoch {last['epoch']}{gained}, {last['moves']} moves, {last['bytes'] / 2**20:.1f} MiB, "
        f"stall {last['stall_ms']:.2f} ms",
    )
    if last.get("reason"):
        _say(out, f"         because {last['reason']}")


def _planner(out: Console, planner: Any) -> None:
    for name, group in ((planner or {}).get("groups") or {}).items():
        if not group.get("decisions"):
            continue
        last = group["decisions"][0]  # newest first
        paused = " (paused)" if group.get("paused") else ""
        _say(out, f"planner  {name}{paused}: {last['kind'].replace('_', ' ')}: {last['reason']}")
