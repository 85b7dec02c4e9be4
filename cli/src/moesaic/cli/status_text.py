"""The text of `moesaic status`. Pure."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Table


def render(report: dict[str, Any], width: int | None = None) -> str:
    """The report for people; colours only on a terminal."""
    console = Console(
        file=io.StringIO(), width=width or max(100, Console().width), force_terminal=Console().is_terminal
    )
    console.print(f"bus      {report['nats']} is {report['bus']}", highlight=False)
    for name in report["down"]:
        console.print(f"[bold red]{name} is down[/]", highlight=False)
    if "api" in report:
        console.print(f"api      {report['api']}", highlight=False)
    for name, group in report["groups"].items():
        _group(console, name, group)
    _planner(console, report.get("planner"))
    if not report["groups"] and report["bus"] == "up":
        console.print("no engine has been heard")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def _group(console: Console, name: str, group: dict[str, Any]) -> None:
    console.print(
        f"\ngroup    [bold]{name}[/]: model {group['model']}, generation {group['generation']}, "
        f"{group['ranks']} rank(s), epoch {group['epoch']}.{group['instalment']}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("engine", "rank", "state", "running", "waiting", "KV", "step ms", "tokens", "switches", "stall ms"):
        table.add_column(column, justify="left" if column in {"engine", "state"} else "right")
    for engine in sorted(group["engines"], key=lambda e: (e["rank"], e["source"]["producer"])):
        table.add_row(*_engine(engine))
    console.print(table)
    window = group.get("window")
    if window is not None:
        _window(console, window)
    if group.get("last_placement"):
        _placement(console, group["last_placement"])


def _engine(engine: dict[str, Any]) -> list[str]:
    total = engine["kv_blocks_total"] or 1
    state = "silent" if engine.get("silent") else engine["state"]
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


def _window(console: Console, window: dict[str, Any]) -> None:
    for phase, figures in window["phases"].items():
        if figures["balance"] is None:
            continue
        worst = (
            ""
            if figures["worst_layer"] is None
            else f", worst layer {figures['worst_layer']} {figures['balance_worst']:.3f}"
        )
        console.print(
            f"balance  {phase}: {figures['balance']:.3f} of {figures['balance_best']:.3f} possible (tokens){worst}",
            highlight=False,
        )
    if window["hot"]:
        hot = ", ".join(f"layer {e['layer']} expert {e['expert']} {e['ratio']:.1f}x" for e in window["hot"][:6])
        console.print(f"hot      {hot}", highlight=False)


def _placement(console: Console, last: dict[str, Any]) -> None:
    gained = ""
    if last["balance_before"] is not None and last["balance_after"] is not None:
        gained = f": balance {last['balance_before']:.3f} -> {last['balance_after']:.3f} ({last['phase']})"
    console.print(
        f"placed   epoch {last['epoch']}{gained}, {last['moves']} moves, {last['bytes'] / 2**20:.1f} MiB, "
        f"stall {last['stall_ms']:.2f} ms",
        highlight=False,
    )
    if last.get("reason"):
        console.print(f"         because {last['reason']}", highlight=False)


def _planner(console: Console, planner: Any) -> None:
    for name, group in ((planner or {}).get("groups") or {}).items():
        if not group.get("decisions"):
            continue
        last = group["decisions"][0]  # newest first
        paused = " (paused)" if group.get("paused") else ""
        console.print(f"planner  {name}{paused}: {last['kind'].replace('_', ' ')}: {last['reason']}", highlight=False)
