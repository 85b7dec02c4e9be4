"""Stop strings in a growing text: nothing is released that may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """The stop string that ends first wins, of those the longest: so it does not matter how the text was cut."""

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._strings = tuple(strings)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; what can be released now. After a match (`matched`) nothing more is."""
        if self.matched is not None:
            return ""
        held = self._held + text
        ends = [(at + len(s), -len(s), s) for s in self._strings if (at := held.find(s)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            self._held = ""
            return held[:end] if self._include else held[: end - len(self.matched)]
        keep = max((_overlap(held, s) for s in self._strings), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text has ended: what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
