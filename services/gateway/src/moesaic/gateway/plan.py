"""From a checked request to what is to be generated: sampling, length, one job per choice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.gateway.choice import Choice
from moesaic.gateway.errors import invalid, too_long
from moesaic.gateway.models import Model
from moesaic.gateway.runner import Job
from moesaic.gateway.schema import GenerationRequest
from moesaic.gateway.stops import Stops
from moesaic.shared.messages import Sampling


@dataclass(frozen=True)
class Plan:
    """A request ready to run. `jobs` and `choices` are in order of their index: all of the first prompt, and so on."""

    request: GenerationRequest
    model: Model
    prompts: tuple[tuple[int, ...], ...]
    jobs: tuple[Job, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt) for prompt in self.prompts)

    def choice(self, index: int) -> Choice:
        """A new text side for a job."""
        request, sampling = self.request, self.jobs[index].sampling
        skip = request.skip_special_tokens is not False
        return Choice(
            lambda tokens: self.model.vocabulary.decode(tokens, skip_special=skip),
            Stops(request.stops, include=bool(request.include_stop_str_in_output)),
            stop_ids=() if request.include_stop_str_in_output else sampling.stop_token_ids,
            eos=() if sampling.ignore_eos else self.model.card.eos_token_ids,
            min_tokens=sampling.min_tokens,
        )


def make(
    request: GenerationRequest, model: Model, prompts: Sequence[Sequence[int]], *, name: str, seed: int, deadline: float
) -> Plan:
    """`prompts` in token ids; `seed` is used where the request has none. Raises ApiError."""
    for prompt in prompts:
        _check(prompt, model)
    seed = seed if request.seed is None else request.seed
    jobs = tuple(
        Job(
            name=f"{name}-{place * request.choices + choice}",
            model=model.card.model,
            prompt=tuple(prompt),
            sampling=_sampling(request, model, len(prompt), seed + place * request.choices + choice),
            deadline=deadline,
        )
        for place, prompt in enumerate(prompts)
        for choice in range(request.choices)
    )
    return Plan(request, model, tuple(map(tuple, prompts)), jobs)


def _check(prompt: Sequence[int], model: Model) -> None:
    if not prompt:
        raise invalid("the prompt is empty", "prompt")
    if not all(0 <= token < model.card.vocab for token in prompt):
        raise invalid(f"token ids must be at least 0 and less than {model.card.vocab}", "prompt")
    if len(prompt) >= model.card.context:
        raise too_long(model.card.context, len(prompt), 0)


def _sampling(request: GenerationRequest, model: Model, prompt: int, seed: int) -> Sampling:
    left = model.card.context - prompt
    given = request.max_tokens_given
    if given is not None and given > left:
        raise too_long(model.card.context, prompt, given)
    tokens = given or min(left, request.default_tokens or left)
    if (request.min_tokens or 0) > tokens:
        raise invalid(f"min_tokens exceeds the {tokens} tokens that may be generated", "min_tokens")
    return Sampling(
        max_tokens=tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        seed=seed,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=request.wanted_logprobs,
    )
