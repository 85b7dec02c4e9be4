"""The demo model's tokenizer, and a card for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from moesaic.gateway.models import Model, build
from moesaic.shared import subjects
from moesaic.shared.bus import Bus
from moesaic.shared.messages import ModelCard, encode

TINY = Path(__file__).parents[2] / "models" / "moesaic-tiny"
NAME = "org/tiny.1"
STOP = 0
"""The end-of-text token."""


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def ids(text: str) -> list[int]:
    return tokenizer().encode(text).ids


def card(files: dict[str, str], **changes: Any) -> ModelCard:
    made = ModelCard(
        model=NAME,
        digest="d",
        architecture="Qwen3MoeForCausalLM",
        context=2048,
        vocab=6144,
        layers=4,
        experts=32,
        top_k=4,
        eos_token_ids=(STOP,),
        files=files,
        created=1.7e9,
    )
    return msgspec.structs.replace(made, **changes)


@cache
def tiny() -> Model:
    names = ("tokenizer.json", "tokenizer_config.json")
    return build(card({}), {name: (TINY / name).read_bytes() for name in names})


async def publish_model(bus: Bus, **files: bytes) -> None:
    found = {name: (TINY / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")} | files
    for name, data in found.items():
        await bus.put_file(subjects.FILES, f"digest-of-{name}", data)
    bucket = await bus.bucket(subjects.MODELS)
    made = card({name: f"digest-of-{name}" for name in found})
    await bucket.put(subjects.token(NAME), encode(made))
