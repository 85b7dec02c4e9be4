"""Figures of requests: counts, tokens per second, times to the first and between tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figures:
    """Of the requests of a while; times in seconds."""

    done: int = 0
    failed: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, error: str) -> None:
        """Count a failure by its text."""
        self.failed += 1
        self.errors[error] = self.errors.get(error, 0) + 1

    def shown(self, seconds: float) -> dict[str, Any]:
        """As numbers for people and machines."""
        return {
            "done": self.done,
            "failed": self.failed,
            "tokens_per_second": round(self.tokens / seconds, 1) if seconds else 0.0,
            "ttft_ms": {"p50": _ms(self.first, 0.5), "p99": _ms(self.first, 0.99)},
            "itl_ms": {"p50": _ms(self.between, 0.5), "p99": _ms(self.between, 0.99)},
        }


def _ms(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3, 2)


def line(shown: dict[str, Any]) -> str:
    """What `Figures.shown` gave, in one line."""
    return (
        f"{shown['done']:4d} done {shown['failed']:2d} failed {shown['tokens_per_second']:7.1f} tok/s"
        f"  ttft {shown['ttft_ms']['p50'] or 0:6.1f}/{shown['ttft_ms']['p99'] or 0:6.1f} ms"
        f"  itl {shown['itl_ms']['p50'] or 0:5.1f}/{shown['itl_ms']['p99'] or 0:5.1f} ms"
    )
