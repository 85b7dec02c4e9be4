"""A group's record as engines change it: pure transitions, each to be stored by compare-and-set.

The record's life: engines claim ranks (each change of members is a new generation) -> every member has left the former
generation and says it is ready -> rank 0 opens the rendezvous -> the generation is formed and steps -> somebody loses it ->
the same members get the next generation.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from moesaic.shared.messages import Group, Member


def same_job(record: Group, mine: Group) -> bool:
    """The record is of the same group size and model as this engine wants."""
    a, b = ((g.size, g.model, g.model_digest, g.layers, g.experts, g.top_k, g.slot_bytes) for g in (record, mine))
    return a == b


def claim(record: Group | None, mine: Group, silent: Callable[[Member], bool]) -> Group | None:
    """The record with this engine (the one member of `mine`) in it, or None if there is no place for it.

    Its name's old place comes first, then a free one, then that of a member that is `silent`. A record of another size or
    model is from another time: a new one begins, with the next generation.
    """
    me = mine.members[0]
    if record is None:
        return mine
    if not same_job(record, mine):
        return replace(mine, generation=record.generation + 1)
    members = list(record.members)
    place = next((i for i, m in enumerate(members) if m.engine == me.engine), None)
    if place is None and len(members) >= record.size:
        place = next((i for i, m in enumerate(members) if silent(m)), None)
        if place is None:
            return None
    if place is None:
        members.append(me)
    else:
        members[place] = me
    return _next(replace(record, members=tuple(members)))


def renew(record: Group) -> Group:
    """The next generation of the same members: somebody lost this one."""
    return _next(record)


def ready(record: Group, rank: int) -> Group:
    """A member waits for the rendezvous."""
    members = tuple(replace(m, ready=True) if r == rank else m for r, m in enumerate(record.members))
    return replace(record, members=members)


def opened(record: Group, store: str) -> Group:
    """Rank 0 has opened the rendezvous."""
    return replace(record, store=store)


def all_ready(record: Group) -> bool:
    """Every rank is claimed and waits."""
    return len(record.members) == record.size and all(m.ready for m in record.members)


def _next(record: Group) -> Group:
    members = tuple(replace(m, ready=False) for m in record.members)
    return replace(record, generation=record.generation + 1, members=members, store="")
