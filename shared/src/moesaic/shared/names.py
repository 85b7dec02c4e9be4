"""What the bus takes as a name: subjects with wildcards, KV keys, micro services. NATS's rules, without NATS."""

from __future__ import annotations

import re

_KEY = re.compile(r"(?!\.)[-/_=.a-zA-Z0-9]+(?<!\.)")
_SERVICE = re.compile(r"[A-Za-z0-9_-]+")


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject falls under a pattern: `*` is one token, a final `>` one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(w in {"*", g} for w, g in zip(wanted, given, strict=True))


def check_subject(subject: str, *, wild: bool = False) -> None:
    """Raise ValueError unless NATS takes this subject; wildcards only where `wild`."""
    tokens = subject.split(".")
    if not all(tokens) or any(blank in subject for blank in " \t\r\n"):
        raise ValueError(f"not a subject: {subject!r}")
    for index, part in enumerate(tokens):
        last = index == len(tokens) - 1
        if ("*" in part or ">" in part) and not (wild and (part == "*" or (part == ">" and last))):
            raise ValueError(f"a wildcard that is not allowed here: {subject!r}")


def check_key(key: str) -> None:
    """Raise ValueError unless NATS takes this KV key."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a KV key: {key!r}")


def check_service(name: str) -> None:
    """Raise ValueError unless NATS takes this name of a micro service."""
    if not _SERVICE.fullmatch(name):
        raise ValueError(f"not a service name: {name!r}")
