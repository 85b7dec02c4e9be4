from __future__ import annotations

import msgspec
import pytest

from moesaic.monitor.engines import GONE_S, SILENT_S, Engines
from moesaic.monitor.state import GROUPS, State
from moesaic.shared.messages import BadMessage, EngineStatus, Source
from monitor.samples import load


def status(seq: int, *, boot: str = "b1", queue: int = 0) -> EngineStatus:
    source = Source(producer="a", boot=boot, seq=seq)
    return EngineStatus(
        source=source, at=0.0, model="tiny", role="both", state="serving", group="g", rank=0, waiting=queue
    )


def heard(*statuses: EngineStatus) -> Engines:
    engines = Engines()
    for one in statuses:
        engines.take(one, 100.0)
    return engines


def test_an_engine_unheard_for_five_seconds_is_silent() -> None:
    engines = heard(status(1))
    assert engines.listed(100.0 + SILENT_S)[0]["silent"] is False
    assert engines.listed(101.0 + SILENT_S)[0]["silent"] is True
    assert engines.states(101.0 + SILENT_S)["silent"] == 1


def test_an_engine_that_has_gone_is_no_longer_listed() -> None:
    engines = heard(status(1))
    engines.expire(101.0 + GONE_S)
    assert engines.listed(101.0 + GONE_S) == []


def test_a_late_heartbeat_does_not_replace_a_newer_one_but_a_new_boot_does() -> None:
    engines = heard(status(9, queue=9), status(8, queue=8))
    assert engines.newest()[0].waiting == 9
    engines.take(status(1, boot="b2", queue=1), 101.0)
    assert engines.newest()[0].waiting == 1


def test_more_groups_than_can_be_are_refused_and_forgotten_when_nothing_more_is_heard() -> None:
    state = State(0.0, 0.0)
    for number in range(GROUPS):
        state.load(msgspec.structs.replace(load(1, 1), group=f"g{number}"), 0.0)
    with pytest.raises(BadMessage, match="too many"):
        state.load(load(1, 1), 0.0)
    state.close(1000.0, 1000.0)
    state.load(load(1, 1), 1000.0)
    assert list(state.groups) == ["g"]
