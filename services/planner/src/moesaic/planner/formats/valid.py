"""What every placement that is read or written must be."""

from __future__ import annotations

import itertools

from moesaic.planner.formats.errors import FormatError
from moesaic.shared.placement import PlacementError, State, check_state, used


def experts_of(state: State) -> int:
    """One more than the highest expert id; 0 where there is none."""
    return 1 + max((expert for layer in state for rank in layer.experts for expert in rank), default=-1)


def checked(state: State, where: object, *, experts: int | None = None, ranks: int | None = None) -> State:
    """The state itself. Raises FormatError with layer and rank unless every expert is somewhere and none elsewhere."""
    highest = experts_of(state)
    if not highest:
        raise FormatError(f"{where}: a placement of {len(state)} layers without any expert")
    size = highest if experts is None else experts
    wide = len(state[0].experts) if ranks is None else ranks
    for index, layer in enumerate(state):
        if len(layer.experts) != wide:
            raise FormatError(f"{where}: layer {index}: expected {wide} ranks, found {len(layer.experts)}")
        seen = {expert for rank in layer.experts for expert in rank}
        if len(seen) < size:  # before anything of that size is made: an id in a file may be any number
            missing = next(expert for expert in itertools.count() if expert not in seen)
            raise FormatError(f"{where}: layer {index}: expert {missing} of {size} is on no rank")
    slots = [used(state, rank) for rank in range(wide)]
    try:
        check_state(state, layers=len(state), experts=size, ranks=wide, slots=slots)
    except PlacementError as error:
        raise FormatError(f"{where}: {error}") from error
    return state
