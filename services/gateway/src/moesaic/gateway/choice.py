"""One choice of an answer: tokens become text, stop strings are matched, tokens are counted. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from moesaic.gateway.detokenize import Decode, Detokenizer
from moesaic.gateway.stops import Stops
from moesaic.gateway.streams import Piece
from moesaic.shared.messages import TokenLogprob


@dataclass(frozen=True)
class Delta:
    """What is new of a choice. `tokens` are the counted ones; `logprobs` beside them, if asked for."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: str | None
    stop_reason: str | int | None
    cached_tokens: int


@dataclass
class _Step:
    """A piece as it is worked off."""

    text: list[str] = field(default_factory=list)
    used: int = 0
    finish: str | None = None
    reason: str | int | None = None


class Choice:
    """What a stop string ends is not sent, and tokens after the one that completed it are not counted."""

    def __init__(
        self, decode: Decode, stops: Stops, *, stop_ids: Collection[int], eos: Collection[int], min_tokens: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = stops
        self._stop_ids = frozenset(stop_ids)
        self._eos = frozenset(eos)
        self._min_tokens = min_tokens

    def push(self, piece: Piece) -> Delta:
        """Take the next tokens. When the delta has `finish`, the choice has ended."""
        step = _Step()
        for place, token in enumerate(piece.tokens):
            step.used += 1
            last = piece.finish == "stop" and place == len(piece.tokens) - 1
            if last and token in self._stop_ids | self._eos:
                step.reason = token if token in self._stop_ids else None
                continue  # the token that ends it is no text
            step.text.append(self._text(self._detokenizer.push(token), piece.index + step.used))
            if self._stops.matched is not None:
                break
        if piece.finish is not None and self._stops.matched is None:
            step.text.append(self._text(self._detokenizer.flush(), piece.index + step.used))
            step.text.append(self._stops.flush())
        return self._delta(piece, step)

    def _text(self, text: str, count: int) -> str:
        """`text` is what the output's `count`-th token made certain; up to `min_tokens` nothing stops it."""
        return text if count <= self._min_tokens else self._stops.push(text)

    def _delta(self, piece: Piece, step: _Step) -> Delta:
        matched = self._stops.matched
        return Delta(
            text="".join(step.text),
            tokens=piece.tokens[: step.used],
            logprobs=piece.logprobs[: step.used],
            finish=piece.finish if matched is None else "stop",
            stop_reason=step.reason if matched is None else matched,
            cached_tokens=piece.cached_tokens,
        )
