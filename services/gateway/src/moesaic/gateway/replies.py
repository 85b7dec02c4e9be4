"""Answers as the OpenAI API shapes them: chunks of a stream, and whole ones. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from moesaic.gateway.choice import Delta
from moesaic.gateway.generation import Update
from moesaic.gateway.logprobs import chat_logprobs, completion_logprobs
from moesaic.gateway.plan import Plan

Json = dict[str, Any]


class Reply(Protocol):
    """One endpoint's way to answer. `created` in Unix seconds."""

    def chunks(self, update: Update) -> list[Json]:
        """What a stream says of an update; nothing where there is nothing to see."""

    def usage_chunk(self, figures: Json) -> Json:
        """The last chunk of a stream that was asked for usage."""

    def whole(self, choices: Sequence[Sequence[Delta]], figures: Json) -> Json:
        """The answer that is no stream: all deltas of each choice."""


class _Base(ABC):
    object_whole = ""
    object_chunk = ""

    def __init__(self, plan: Plan, name: str, created: int) -> None:
        self._plan = plan
        self._request = plan.request
        self._head = {"id": name, "created": created, "model": plan.model.card.model}
        self._offsets = [0] * len(plan.jobs)

    def chunks(self, update: Update) -> list[Json]:
        """See Reply."""
        delta = update.delta
        wanted = self._request.return_token_ids or self._request.wanted_logprobs is not None
        if not (update.first or delta.text or delta.finish or wanted):
            return []
        return [self._envelope(self.object_chunk, [self._streamed(update)])]

    def usage_chunk(self, figures: Json) -> Json:
        """See Reply."""
        return {**self._envelope(self.object_chunk, []), "usage": figures}

    def whole(self, choices: Sequence[Sequence[Delta]], figures: Json) -> Json:
        """See Reply."""
        made = [self._choice(index, _joined(deltas)) for index, deltas in enumerate(choices)]
        return {**self._envelope(self.object_whole, made), "usage": figures}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        envelope = {**self._head, "object": kind, "choices": choices}
        if kind == self.object_chunk and self._request.wants_usage:
            envelope["usage"] = None
        return envelope

    @abstractmethod
    def _streamed(self, update: Update) -> Json:
        """One update as a choice of a chunk."""

    @abstractmethod
    def _choice(self, index: int, delta: Delta) -> Json:
        """A whole choice."""

    def _ending(self, index: int, delta: Delta) -> Json:
        ending: Json = {"index": index, "finish_reason": delta.finish}
        if delta.stop_reason is not None:
            ending["stop_reason"] = delta.stop_reason
        if self._request.return_token_ids:
            ending["token_ids"] = list(delta.tokens)
        return ending


class ChatReply(_Base):
    """POST /v1/chat/completions."""

    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def _streamed(self, update: Update) -> Json:
        role = {"role": "assistant"} if update.first else {}
        text = {"content": update.delta.text} if update.first or update.delta.text else {}
        ending = self._ending(update.index, update.delta)
        return ending | {"delta": role | text, "logprobs": self._logprobs(update.delta)}

    def _choice(self, index: int, delta: Delta) -> Json:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return self._ending(index, delta) | {"message": message, "logprobs": self._logprobs(delta)}

    def _logprobs(self, delta: Delta) -> Json | None:
        if self._request.wanted_logprobs is None:
            return None
        return chat_logprobs(self._plan.model.vocabulary, delta)


class CompletionReply(_Base):
    """POST /v1/completions."""

    object_whole = "text_completion"
    object_chunk = "text_completion"

    def _streamed(self, update: Update) -> Json:
        return self._choice(update.index, update.delta)

    def _choice(self, index: int, delta: Delta) -> Json:
        return self._ending(index, delta) | {"text": delta.text, "logprobs": self._logprobs(index, delta)}

    def _logprobs(self, index: int, delta: Delta) -> Json | None:
        if self._request.wanted_logprobs is None:
            return None
        made, self._offsets[index] = completion_logprobs(self._plan.model.vocabulary, delta, self._offsets[index])
        return made


def _joined(deltas: Sequence[Delta]) -> Delta:
    """All deltas of a choice as one."""
    last = deltas[-1]
    return Delta(
        text="".join(d.text for d in deltas),
        tokens=tuple(token for d in deltas for token in d.tokens),
        logprobs=tuple(entry for d in deltas for entry in d.logprobs),
        finish=last.finish,
        stop_reason=last.stop_reason,
        cached_tokens=deltas[0].cached_tokens,
    )
