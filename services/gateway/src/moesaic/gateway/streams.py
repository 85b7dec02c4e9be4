"""Output tokens of one request in order, whatever arrives twice, late or not at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.shared.messages import Frame, TokenLogprob, WireError


@dataclass(frozen=True)
class Piece:
    """New output tokens from `index` on; `finish` only with the last."""

    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: str | None
    cached_tokens: int


class Arrivals:
    """What has arrived of a request over all engines that worked on it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._given = 0
        self._cached: int | None = None
        self.finish: str | None = None
        self.error: WireError | None = None

    @property
    def next_index(self) -> int:
        """The output index that is missing first."""
        return len(self.tokens)

    def take(self, frame: Frame) -> bool:
        """Add what is new in a frame. False: tokens before it are missing, nothing was added."""
        skip = self.next_index - frame.from_index
        if skip < 0:
            return False
        if skip > len(frame.tokens) or self.finish is not None:
            return True
        self.tokens.extend(frame.tokens[skip:])
        self._logprobs.extend((frame.logprobs or ())[skip:])
        if self._cached is None:
            self._cached = frame.cached_tokens
        self.finish = frame.finish
        self.error = frame.error
        return True

    def give(self) -> Piece | None:
        """What came since the last call, or None."""
        if self._given == len(self.tokens) and self.finish is None:
            return None
        start, self._given = self._given, len(self.tokens)
        new = tuple(self.tokens[start:])
        return Piece(start, new, tuple(self._logprobs[start:]), self.finish, self._cached or 0)

    def begin_again(self) -> None:
        """Another engine goes on from the tokens there are."""
        self.error = None
