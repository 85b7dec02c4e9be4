"""What a checkpoint's `config.json` says, in one vocabulary: older and newer files name the same things differently."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(ValueError):
    """A checkpoint that cannot be served; the text is one line for the operator."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder with MoE layers."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_eps: float
    rope_theta: float
    tied: bool
    dense_width: int
    moe_layers: tuple[int, ...]
    """Indices of the layers that have experts."""
    experts: int
    top_k: int
    expert_width: int
    renormalise: bool
    eos: tuple[int, ...]

    @property
    def expert_numel(self) -> int:
        """Weights of one expert: gate, up and down."""
        return 3 * self.hidden * self.expert_width


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: not a checkpoint folder in Hugging Face layout") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def architecture_of(raw: dict[str, Any]) -> str:
    """The class name of the first architecture."""
    names = raw.get("architectures") or [raw.get("model_type") or "unknown"]
    return str(names[0])


def eos_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: those of `generation_config.json` win over those of `config.json`."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    ids = generation.get("eos_token_id", raw.get("eos_token_id"))
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (int(ids),)


class Fields:
    """Reads a raw config, collecting every complaint so that they are told at once."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.problems: list[str] = []

    def number(self, *names: str, default: float | None = None) -> float:
        """The first of these names that is there."""
        for name in names:
            value = self.raw.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return value
        if default is None:
            self.problems.append(f"{' or '.join(names)} is missing")
            return 1
        return default

    def whole(self, *names: str, default: int | None = None) -> int:
        """The same as an integer of at least 1."""
        value = int(self.number(*names, default=default))
        if value < 1:
            self.problems.append(f"{names[0]} must be at least 1, it is {value}")
            return 1
        return value

    def require(self, name: str, *allowed: object) -> None:
        """Complain unless a setting has one of the values this family computes."""
        if self.raw.get(name, allowed[0]) not in allowed:
            self.problems.append(f"{name}={self.raw[name]!r} is not supported")

    def rope_theta(self) -> float:
        """Base of the rotary embedding; scaled variants are refused."""
        rope = self.raw.get("rope_parameters") or {}
        scaling = self.raw.get("rope_scaling") or {}
        kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
        if kind != "default":
            self.problems.append(f"rope type {kind!r} is not supported")
        return float(rope.get("rope_theta", self.raw.get("rope_theta", 10000.0)))

    def done(self, architecture: str) -> None:
        """Raise ModelError with every problem."""
        if self.problems:
            raise ModelError(f"config.json of {architecture}: " + "; ".join(self.problems))
