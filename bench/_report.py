"""How every benchmark reports: one JSON object per line with --json, else a table; progress on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """One measured value, beside a peer's from the same run where there is one."""

    bench: str
    case: str
    metric: str
    unit: str
    value: float
    peer: str | None = None
    peer_value: float | None = None
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The flags that every benchmark has."""
    parse = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--json", action="store_true", help="one JSON object per line")
    parse.add_argument("--quick", action="store_true", help="under a minute, rougher")
    return parse


def progress(text: str) -> None:
    """To stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def show(figures: list[Figure], *, as_json: bool) -> None:
    """To stdout."""
    width = max((34, *(len(f.case) for f in figures)))
    for f in figures:
        if as_json:
            print(json.dumps(asdict(f)))
            continue
        beside = "" if f.peer_value is None else f"   {f.peer}: {f.peer_value:.4g} ({f.value / f.peer_value:.2f}x)"
        print(f"{f.case:<{width}} {f.metric:<26} {f.value:10.4g} {f.unit}{beside}")
