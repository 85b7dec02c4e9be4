from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.shared import placement
from moesaic.shared.messages import Group, LayerPlacement, Member, Placement
from moesaic.shared.placement import PlacementError, State
from shared.states import Journey, journeys, states


@given(journeys())
def test_every_state_on_the_way_is_valid_within_the_whole_pool(journey: Journey) -> None:
    ranks = len(journey.slots)
    for state in placement.path(journey.live, journey.target, journey.order, journey.slots):
        placement.check_state(state, layers=len(state), experts=journey.experts, ranks=ranks, slots=journey.slots)


@given(journeys())
def test_a_slot_given_up_in_a_round_is_not_filled_in_the_same_round(journey: Journey) -> None:
    before = journey.live
    for state in placement.path(journey.live, journey.target, journey.order, journey.slots):
        both = placement.holds(before) | placement.holds(state)
        for rank, slots in enumerate(journey.slots):
            assert sum(1 for _, r, _ in both if r == rank) <= slots
        before = state


@given(journeys())
def test_the_way_ends_at_the_target(journey: Journey) -> None:
    states = placement.path(journey.live, journey.target, journey.order, journey.slots)
    assert (states[-1] if states else journey.live) == journey.target


@given(journeys())
def test_each_copy_is_received_at_most_once(journey: Journey) -> None:
    way = [journey.live, *placement.path(journey.live, journey.target, journey.order, journey.slots)]
    received = sum(placement.moves(one, other) for one, other in itertools.pairwise(way))
    assert received == placement.moves(journey.live, journey.target)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.data())
def test_there_is_no_way_to_where_one_is(layers: int, experts: int, ranks: int, data: st.DataObject) -> None:
    state = data.draw(states(layers, experts, ranks))
    assert placement.path(state, state, (), [100] * ranks) == []


def test_the_same_copies_with_other_shares_are_one_instalment() -> None:
    live = (LayerPlacement(experts=((0,), (0,)), shares=((1,), (1,))),)
    target = (LayerPlacement(experts=((0,), (0,)), shares=((1,), (3,))),)
    assert placement.path(live, target, (), (2, 2)) == [target]


def test_layers_move_in_the_order_asked_for() -> None:
    def swapped(*turned: int) -> State:
        return tuple(placement.layer_of([[1], [0]] if layer in turned else [[0], [1]]) for layer in range(3))

    way = placement.path(swapped(), swapped(0, 1, 2), (2, 0), (4, 4))
    moved = [tuple(s[layer] == swapped(0, 1, 2)[layer] for layer in range(3)) for s in way]
    assert moved == [(False, False, True), (True, False, True), (True, True, True)]


def test_without_a_spare_slot_full_ranks_cannot_swap() -> None:
    live, target = (placement.layer_of([[0], [1]]),), (placement.layer_of([[1], [0]]),)
    with pytest.raises(PlacementError, match="no room to move"):
        placement.path(live, target, (), (1, 1))


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 5))
def test_the_default_places_each_expert_once_and_evenly(layers: int, experts: int, ranks: int) -> None:
    state = placement.in_order(layers, experts, ranks)
    placement.check_state(state, layers=layers, experts=experts, ranks=ranks, slots=[layers * experts] * ranks)
    sizes = [len(held) for layer in state for held in layer.experts]
    assert sum(sizes) == layers * experts
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), st.integers(1, 5))
def test_over_many_layers_the_default_is_even_to_one_slot_per_turn(experts: int, ranks: int) -> None:
    state = placement.in_order(ranks, experts, ranks)
    assert {placement.used(state, rank) for rank in range(ranks)} == {experts}


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_hosts_are_ascending_and_carry_their_shares(experts: int, ranks: int, data: st.DataObject) -> None:
    layer = data.draw(states(1, experts, ranks))[0]
    at, shares = placement.hosts(layer, experts)
    for expert in range(experts):
        known = {
            rank: layer.shares[rank][layer.experts[rank].index(expert)]
            for rank in range(ranks)
            if expert in layer.experts[rank]
        }
        copies = len(known)
        assert dict(zip(at[expert, :copies].tolist(), shares[expert, :copies].tolist(), strict=True)) == known
        assert at[expert, :copies].tolist() == sorted(known)
        assert (at[expert, copies:] == -1).all()
        assert (shares[expert, copies:] == 0).all()


@pytest.mark.parametrize(
    ("experts", "shares", "reason"),
    [
        (((0,), (1,)), ((1,), (1,)), "expert 2 is homeless"),
        (((0, 0, 1), (2,)), ((1, 1, 1), (1,)), "expert 0 is there twice"),
        (((0, 1, 3), (2,)), ((1, 1, 1), (1,)), "experts are 0 to 2"),
        (((0, 1, -1), (2,)), ((1, 1, 1), (1,)), "experts are 0 to 2"),
        (((0, 1), (2,)), ((1,), (1,)), "2 experts but 1 shares"),
        (((0, 1), (2,)), ((1, 0), (1,)), "every share must be"),
        (((0, 1), (2,)), ((1, 2**31), (1,)), "every share must be"),
        (((0, 1, 2),), ((1, 1, 1),), "placed on 1 ranks, the group has 2"),
        (((0, 1, 2), (0, 1, 2)), ((1, 1, 1), (1, 1, 1)), "rank 0 would need 3 slots, it has 2"),
    ],
)
def test_an_impossible_layer_is_refused_with_its_reason(
    experts: tuple[tuple[int, ...], ...], shares: tuple[tuple[int, ...], ...], reason: str
) -> None:
    state = (LayerPlacement(experts=experts, shares=shares),)
    with pytest.raises(PlacementError, match=reason):
        placement.check_state(state, layers=1, experts=3, ranks=2, slots=(2, 2))


def test_a_placement_with_other_layers_than_the_model_is_refused() -> None:
    with pytest.raises(PlacementError, match="2 layers, the model has 3"):
        placement.check_state(placement.in_order(2, 4, 2), layers=3, experts=4, ranks=2, slots=(9, 9))


GROUP = Group(
    group="g",
    generation=7,
    size=2,
    model="m",
    model_digest="d",
    layers=2,
    experts=4,
    top_k=2,
    slot_bytes=1,
    members=tuple(
        Member(engine=f"e{n}", boot="b", node="n", device="cpu", host="h", bell=1, slots=6, spare=1) for n in range(2)
    ),
)


def target(**changes: object) -> Placement:
    known: dict[str, object] = {
        "group": "g",
        "generation": 7,
        "model_digest": "d",
        "layers": placement.in_order(2, 4, 2),
    }
    return Placement(**(known | changes))  # type: ignore[arg-type]


def test_a_placement_for_this_generation_is_accepted() -> None:
    placement.check(target(), GROUP)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": "other"}, "for group 'other', this is 'g'"),
        ({"generation": 6}, "for generation 6, the group is in 7"),
        ({"generation": 8}, "for generation 8, the group is in 7"),
        ({"model_digest": "x"}, "for model x, this group serves d"),
        ({"order": (2,)}, "order names a layer outside 0 to 1"),
        ({"layers": placement.in_order(2, 4, 1)}, "placed on 1 ranks"),
        ({"layers": (placement.layer_of([[0, 1, 2], [3]]),) * 2}, "rank 0 would need 6 slots, it has 5"),
    ],
)
def test_a_placement_for_something_else_is_refused_with_its_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(PlacementError, match=reason):
        placement.check(target(**changes), GROUP)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.data())
def test_a_digest_names_the_content(layers: int, experts: int, ranks: int, data: st.DataObject) -> None:
    one, other = data.draw(states(layers, experts, ranks)), data.draw(states(layers, experts, ranks))
    assert (placement.digest(one) == placement.digest(other)) == (one == other)
