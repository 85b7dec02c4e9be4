"""Every NATS subject, stream and bucket name of moesaic. No other module spells one."""

from __future__ import annotations

from urllib.parse import quote, unquote

ROOT = "moesaic.v1"
ANY = "*"

GROUPS = "moesaic-groups"
"""KV bucket: key = group, value = `Group`: generation, members, rendezvous."""
PLACEMENTS = "moesaic-placement"
"""KV bucket: key = group, value = `Placement`; the revision it is stored under is its epoch."""
MODELS = "moesaic-models"
"""KV bucket: key = model, value = `ModelCard`."""
PLANNER_STATE = "moesaic-planner"
"""KV bucket: key = group, value = what the planner remembers over a restart."""
FILES = "moesaic-files"
"""Object store: tokenizer files by digest."""
EVENTS = "moesaic-events"
"""Stream: the audit trail of placements (every subject below `moesaic.v1.placement`)."""


def token(text: str) -> str:
    """One subject token or bucket key from a name that comes from outside (dots, slashes, blanks are percent-encoded)."""
    if text == ANY:
        return text
    if not text:
        raise ValueError("a subject token must not be empty")
    # NATS keys allow [-/_=.a-zA-Z0-9]: "%" is written "=" so that one encoding serves subjects and keys.
    return quote(text, safe="-_").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


def untoken(text: str) -> str:
    """The name that `token` encoded."""
    return unquote(text.replace("=", "%"))


def generate(engine: str) -> str:
    """Gateway to one engine, acknowledged: a `Generate`, answered by `Accepted` or `Refused`."""
    return f"{ROOT}.engine.{token(engine)}.generate"


def replay(engine: str) -> str:
    """Gateway to one engine: a `Replay`, answered by the `Frame` from that index or `Refused`."""
    return f"{ROOT}.engine.{token(engine)}.replay"


def cancel(engine: str) -> str:
    """Gateway to one engine: a `Cancel`: stop the request, free its KV, forget its tokens."""
    return f"{ROOT}.engine.{token(engine)}.cancel"


def status(engine: str = ANY) -> str:
    """Engine to all: `EngineStatus`, the heartbeat."""
    return f"{ROOT}.engine.{token(engine)}.status"


def frames(gateway: str) -> str:
    """Engine to one gateway: `Frames`, at most one message per step, or a heartbeat."""
    return f"{ROOT}.gateway.{token(gateway)}.frames"


def load(group: str = ANY, engine: str = ANY) -> str:
    """Engine to all: `Load`, cumulative counters."""
    return f"{ROOT}.load.{token(group)}.{token(engine)}"


def imbalance(group: str = ANY) -> str:
    """Monitor to all: `Imbalance`, one merged load window."""
    return f"{ROOT}.imbalance.{token(group)}"


def placement(group: str = ANY, event: str = ANY) -> str:
    """Planner and engines to all: `PlacementEvent`, the audit trail."""
    return f"{ROOT}.placement.{token(group)}.{token(event)}"


def service(name: str, endpoint: str) -> str:
    """People to a micro service's endpoint, such as ("moesaic-planner", "pause")."""
    return f"{ROOT}.service.{token(name)}.{token(endpoint)}"
