from __future__ import annotations

import pytest

from moesaic.planner.live import Live
from moesaic.shared.messages import Placement
from moesaic.shared.placement import State, in_order, layer_of
from planner.samples import record

OTHER: State = tuple(layer_of([[0, 1, 2, 4], [3, 5, 6, 7]]) for _ in range(2))


def placement(layers: State = OTHER, *, digest: str = "m", generation: int = 1) -> Placement:
    return Placement(group="g", generation=generation, model_digest=digest, layers=layers)


def test_a_group_without_a_stored_placement_runs_the_default_one() -> None:
    live = Live()
    live.begin(record())
    assert (live.epoch, live.state(0)) == (0, in_order(2, 8, 2))


@pytest.mark.parametrize("record_first", [True, False])
def test_a_new_generation_begins_with_what_is_stored_whatever_comes_first(record_first: bool) -> None:
    live = Live()
    if record_first:
        live.begin(record(generation=2))
    live.stored(5, placement())
    if not record_first:
        live.begin(record(generation=2))
    assert (live.epoch, live.state(5)) == (5, OTHER)


@pytest.mark.parametrize("misfit", [placement(digest="x"), placement(in_order(2, 8, 3)), placement(in_order(1, 8, 2))])
def test_a_stored_placement_that_does_not_fit_is_not_begun_with(misfit: Placement) -> None:
    live = Live()
    live.stored(5, misfit)
    live.begin(record())
    assert (live.epoch, live.state(5)) == (0, None)


def test_the_engines_word_counts_and_only_grows() -> None:
    live = Live()
    live.begin(record())
    live.stored(5, placement())
    assert live.reported(1, 0)
    assert live.epoch == 0
    assert live.reported(1, 5)
    assert live.reported(1, 0)
    assert live.epoch == 5


def test_an_epoch_nobody_stored_is_not_believed() -> None:
    live = Live()
    live.begin(record())
    assert not live.reported(1, 10**9)
    assert (live.epoch, live.unknown) == (0, 10**9)
    live.reported(1, 0)
    assert live.unknown is None


def test_another_generation_says_nothing_of_this_one() -> None:
    live = Live()
    live.begin(record(generation=2))
    assert not live.reported(1, 0)
    assert not live.confirmed


def test_back_is_the_last_epoch_with_another_content() -> None:
    live = Live()
    live.begin(record())
    for revision, layers in ((3, OTHER), (4, OTHER)):
        live.stored(revision, placement(layers))
        live.reported(1, revision)
        live.settle(revision)
    assert live.before(4) == 0
    assert live.before(0) == 4
