"""Log-probabilities as the OpenAI API shapes them. Pure."""

from __future__ import annotations

from typing import Any

from moesaic.gateway.choice import Delta
from moesaic.gateway.vocabulary import Vocabulary

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def chat_logprobs(vocabulary: Vocabulary, delta: Delta) -> dict[str, Any]:
    """For /v1/chat/completions."""
    content = []
    for token, entry in zip(delta.tokens, delta.logprobs, strict=False):
        top = [_entry(vocabulary, other, logprob) for other, logprob in entry.top]
        content.append(_entry(vocabulary, token, entry.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": vocabulary.token_text(token),
        "logprob": max(logprob, LOWEST),
        "bytes": list(vocabulary.token_bytes(token)),
    }


def completion_logprobs(vocabulary: Vocabulary, delta: Delta, offset: int) -> tuple[dict[str, Any], int]:
    """For /v1/completions; `offset` is the first token's place in the text, returned for the next call."""
    pairs = list(zip(delta.tokens, delta.logprobs, strict=False))
    texts = [vocabulary.token_text(token) for token, _ in pairs]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    made = {
        "tokens": texts,
        "token_logprobs": [max(entry.logprob, LOWEST) for _, entry in pairs],
        "top_logprobs": [
            {vocabulary.token_text(other): max(logprob, LOWEST) for other, logprob in entry.top} for _, entry in pairs
        ],
        "text_offset": offsets,
    }
    return made, offset
