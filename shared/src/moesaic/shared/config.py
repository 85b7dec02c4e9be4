"""Settings: one frozen struct per service, read once from the command line and the environment, checked, explained.

A field `kv_blocks: Annotated[int, Meta(description="…", ge=1)] = 64` is the flag `--kv-blocks` and, for a service with
prefix `MOESAIC_ENGINE`, the variable `MOESAIC_ENGINE_KV_BLOCKS`. The command line wins. Unknown flags and unknown variables
with the prefix are refused by name.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

C = TypeVar("C", bound="Common")


class ConfigError(ValueError):
    """Settings that cannot be used; the text names each."""


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that every service has."""

    nats: Annotated[str, Meta(description="URL of the NATS server")] = "nats://127.0.0.1:4222"
    nats_creds: Annotated[str, Meta(description="NATS credentials file (empty: none)")] = ""
    log_level: Annotated[
        str, Meta(description="debug, info, warning or error", pattern="^(debug|info|warning|error)$")
    ] = "info"


COMMON_ENV = "MOESAIC"
"""Common settings may also be given once for all services: MOESAIC_NATS, MOESAIC_NATS_CREDS, MOESAIC_LOG_LEVEL."""


def parser(kind: type[C], prefix: str, prog: str) -> argparse.ArgumentParser:
    """The command line of a service's settings."""
    parse = argparse.ArgumentParser(
        prog=prog, description=(kind.__doc__ or "").strip(), argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        meta = next((m for m in get_args(hints[field.name]) if isinstance(m, Meta)), Meta())
        default = "required" if field.required else f"default {_default(field)}"
        text = f"{meta.description or ''} ({default}; {prefix}_{field.name.upper()})"
        parse.add_argument(f"--{field.name.replace('_', '-')}", help=text.replace("%", "%%"), metavar="VALUE")
    return parse


def _default(field: msgspec.structs.FieldInfo) -> str:
    return "made at start" if field.default is msgspec.NODEFAULT else repr(field.default)


def load(kind: type[C], prefix: str, prog: str, argv: Sequence[str], env: Mapping[str, str]) -> C:
    """Read settings. Raises ConfigError naming every problem; `--help` prints and exits like any command."""
    names = {field.name for field in msgspec.structs.fields(kind)}
    values: dict[str, str] = {}
    problems = []
    for key, text in env.items():
        if not key.startswith(f"{prefix}_"):
            continue
        name = key.removeprefix(f"{prefix}_").lower()
        if name in names:
            values[name] = text
        else:
            problems.append(f"{key}: no such setting")
    for field in msgspec.structs.fields(Common):
        shared = env.get(f"{COMMON_ENV}_{field.name.upper()}")
        if shared is not None:
            values.setdefault(field.name, shared)
    values.update(vars(parser(kind, prefix, prog).parse_args(argv)))
    return _convert(kind, values, problems)


def _convert(kind: type[C], values: dict[str, str], problems: list[str]) -> C:
    hints = get_type_hints(kind, include_extras=True)
    good: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in values:
            if field.required:
                problems.append(f"--{field.name.replace('_', '-')} is required")
            continue
        try:
            good[field.name] = msgspec.convert(values[field.name], hints[field.name], strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{field.name}={values[field.name]!r}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    return kind(**good)
