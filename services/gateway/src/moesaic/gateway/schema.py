"""The requests of the OpenAI API that work, as types. Every optional field accepts null; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

MAX_STOPS = 16
MAX_CHOICES = 128
COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where none is given: the OpenAI API's default."""


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream contains besides its tokens."""

    include_usage: bool | None = None


class GenerationRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take."""

    model: Annotated[str, Meta(min_length=1)]
    max_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=128)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def max_tokens_given(self) -> int | None:
        """Output tokens asked for."""
        return self.max_tokens

    @property
    def default_tokens(self) -> int | None:
        """Output tokens where none were asked for; None: as many as fit."""
        return None

    @property
    def wanted_logprobs(self) -> int | None:
        """None: no log-probabilities; k: the chosen token's and the k most likely."""
        return None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions. `messages` are checked and brought into one form by `chat.conversation`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def max_tokens_given(self) -> int | None:
        """See GenerationRequest; the newer name wins."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """See GenerationRequest."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions. `prompt`: a string, strings, token ids, or lists of token ids."""

    prompt: Any
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def default_tokens(self) -> int | None:
        """See GenerationRequest."""
        return COMPLETION_TOKENS

    @property
    def wanted_logprobs(self) -> int | None:
        """See GenerationRequest."""
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or token ids. Raises ValueError."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given:
            raise ValueError("must be a string, a list of strings, or a list of token ids")
        if all(type(item) is int for item in given):
            return [given]
        if not all(isinstance(item, str) or _ids(item) for item in given):
            raise ValueError("must hold strings or lists of token ids")
        return given


def _ids(item: object) -> bool:
    return isinstance(item, list) and bool(item) and all(type(token) is int for token in item)
