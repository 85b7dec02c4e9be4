"""Text from tokens as they come: a character split over tokens appears when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

BROKEN = "\ufffd"
TAIL = 4
"""A character has at most four bytes: so many broken ones at the end may still become one."""
LONGEST = 256
"""Tokens decoded together at most; only a text that is broken throughout gets there."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """The deltas joined are `decode` of all tokens.

    It decodes a window: the last tokens whose text is out, as context (some tokenizers drop a blank at the beginning),
    then the new ones.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._context = 0
        self._out = 0

    def push(self, token: int) -> str:
        """The text that this token makes certain; may be empty."""
        self._window.append(token)
        text = self._decode(self._window)
        broken = len(text) - len(text.rstrip(BROKEN))
        certain = len(text) - min(broken, TAIL)
        delta = text[self._out : certain]
        self._out = max(self._out, certain)
        if not broken and text:
            self._advance()
        elif len(self._window) >= LONGEST:
            delta += self.flush()
        return delta

    def flush(self) -> str:
        """The tokens have ended: the rest, broken as it is."""
        rest = self._decode(self._window)[self._out :]
        self._window, self._context, self._out = [], 0, 0
        return rest

    def _advance(self) -> None:
        del self._window[: self._context]
        self._context = len(self._window)
        self._out = len(self._decode(self._window))
