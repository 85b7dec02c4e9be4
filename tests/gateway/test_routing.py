from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from moesaic.gateway.routing import Fleet
from moesaic.shared.messages import EngineStatus, Source


def status(engine: str, seq: int = 1, **changes: Any) -> EngineStatus:
    source = Source(producer=engine, boot="b", seq=seq)
    fields: dict[str, Any] = {"model": "m", "role": "both", "state": "serving", "group": "g", "at": 0.0} | changes
    return EngineStatus(source=source, **fields)


def fleet(*statuses: EngineStatus) -> Fleet:
    made = Fleet(3.0, 5.0, Random(1))
    for each in statuses:
        made.heard(each, 0.0)
    return made


def test_the_engine_with_the_least_load_is_chosen() -> None:
    engines = fleet(status("a", running=3), status("b", running=1), status("c", running=1, waiting=2))
    assert engines.choose("m", 1.0) == "b"


def test_ties_are_spread() -> None:
    engines = fleet(status("a"), status("b"), status("c"))
    counts = Counter(engines.choose("m", 1.0) for _ in range(300))
    assert min(counts[name] for name in "abc") > 60


def test_what_was_sent_since_the_last_heartbeat_counts() -> None:
    engines = fleet(status("a", running=1), status("b"))
    engines.sent("b")
    engines.sent("b")
    assert engines.choose("m", 1.0) == "a"
    engines.heard(status("b", seq=2), 1.0)
    assert engines.choose("m", 1.0) == "b"


def test_only_engines_that_serve_the_model_and_were_heard_are_chosen() -> None:
    engines = fleet(status("a", state="joining"), status("b", model="other"), status("c", role="prefill"))
    assert engines.choose("m", 1.0) is None
    engines.heard(status("d"), 1.0)
    assert engines.choose("m", 4.0) == "d"
    assert engines.choose("m", 4.1) is None


def test_a_doubted_engine_waits_for_its_next_heartbeat() -> None:
    engines = fleet(status("a"))
    engines.doubt("a")
    assert engines.choose("m", 1.0) is None
    engines.heard(status("a", seq=2), 1.0)
    assert engines.choose("m", 1.0) == "a"


def test_an_overtaken_heartbeat_is_ignored() -> None:
    engines = fleet(status("a", seq=5, state="draining"))
    engines.heard(status("a", seq=4), 1.0)
    assert engines.choose("m", 1.0) is None


def test_silence_while_the_bus_was_away_means_nothing() -> None:
    engines = fleet(status("a"))
    assert engines.silent("a", 5.1)
    engines.hearing_again(10.0)
    assert not engines.silent("a", 14.9)
    assert engines.silent("a", 15.1)
