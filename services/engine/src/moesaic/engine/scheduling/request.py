"""One request as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from moesaic.shared.messages import Generate, Sampling


@dataclass
class Request:
    """`tokens` grows: prompt, then outputs. `computed` of them have their KV in `blocks`."""

    id: str
    sampling: Sampling
    tokens: list[int]
    prompt_length: int
    """Tokens before output 0."""
    deadline: float | None = None
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    """Prompt tokens whose KV was found when it was first admitted."""
    admitted: bool = False
    named: int = 0
    """Blocks whose content the prefix cache knows, and …"""
    name: int = 0
    """… the name of the last of them."""

    @classmethod
    def of(cls, message: Generate) -> Request:
        """From the wire: the prompt is what stands before the outputs already delivered."""
        return cls(
            id=message.request,
            sampling=message.sampling,
            tokens=list(message.tokens),
            prompt_length=len(message.tokens) - message.output_offset,
            deadline=message.deadline,
        )

    @property
    def outputs(self) -> int:
        """Output tokens so far; also the index of the next one."""
        return len(self.tokens) - self.prompt_length

    @property
    def decoding(self) -> bool:
        """Only its newest output token is still without KV."""
        return self.outputs > 0 and self.computed == len(self.tokens) - 1


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of a request for this step, from position `first`."""

    request: Request
    first: int
    count: int
    decode: bool

    @property
    def samples(self) -> bool:
        """The step yields the request's next token: after it all its tokens have their KV."""
        return self.first + self.count == len(self.request.tokens)
