"""How many copies each layer gets, and on which ranks: one pool of slots per rank serves all layers. Compiled.

A layer's further copies are worth what the most loaded copy would have without them, its *need*. Needs are compared between
layers in the same unit, so slots go where they help the sum over layers most, and skewed layers get more.
"""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Bytes, Floats, Ints
from moesaic.shared.kernel import kernel


@kernel
def needs(weight: Floats, length: int, most: int, links: Floats) -> Floats:
    """Per layer and further copy `[L, length]`: weight per copy of the expert that gets it; never rises.

    The first copies are worth `links [L]` at least: without as many as there are ranks, less one, some ranks share nothing.
    """
    layers, experts = weight.shape
    trace = np.zeros((layers, length))
    per = np.zeros(experts)
    copies = np.zeros(experts, dtype=np.int64)
    for layer in range(layers):
        per[:] = weight[layer]
        copies[:] = 1
        heap = np.argsort(-per, kind="mergesort")
        for x in range(length):
            best = heap[0]
            worth = max(per[best], links[layer] if x < most - 1 else 0.0)
            if worth <= 0.0:
                break
            trace[layer, x] = worth
            copies[best] += 1
            per[best] = weight[layer, best] / copies[best] if copies[best] < most else 0.0
            _sink(heap, per)
    return trace


@kernel
def _sink(heap: Ints, per: Floats) -> None:
    """The first of a heap, highest first, has become lower."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= heap.size:
            break
        if child + 1 < heap.size and per[heap[child + 1]] > per[heap[child]]:
            child += 1
        if per[heap[child]] <= per[heap[place]]:
            break
        heap[place], heap[child] = heap[child], heap[place]
        place = child


@kernel
def allot(trace: Floats, extra: Ints, least: Ints, free: int, ratio: float) -> None:
    """Change `extra [L]`, further copies per layer, in place: give `free` more, then from layer to layer while worth it.

    A slot changes hands where the taker's need is more than `ratio` times what the giver's would become; with ratio 0 none.
    No layer gives so many that fewer than `least [L]` are left to it.
    """
    layers, length = trace.shape
    while free > 0:
        taker = -1
        for layer in range(layers):
            x = extra[layer]
            if x < length and trace[layer, x] > 0.0 and (taker < 0 or trace[layer, x] > trace[taker, extra[taker]]):
                taker = layer
        if taker < 0:
            break
        extra[taker] += 1
        free -= 1
    for _ in range(layers * length if ratio > 0.0 else 0):
        taker = -1
        giver = -1
        for layer in range(layers):
            x = extra[layer]
            if x < length and (taker < 0 or trace[layer, x] > trace[taker, extra[taker]]):
                taker = layer
            if x > least[layer] and (
                giver < 0 or trace[layer, min(x, length) - 1] < trace[giver, min(extra[giver], length) - 1]
            ):
                giver = layer
        if taker < 0 or giver < 0 or taker == giver:
            break
        if trace[taker, extra[taker]] <= ratio * trace[giver, min(extra[giver], length) - 1]:
            break
        extra[taker] += 1
        extra[giver] -= 1


@kernel
def rooms(live: Ints, due: Ints, copies: Ints, slots: Ints, capacity: Ints) -> Ints:
    """Slots per layer and rank `[L, R]`, `copies [L]` in all, within `slots [R]` and `capacity [L, R]`, near `live [L, R]`.

    First every layer gets what is `due [L, R]`. Then it keeps what it has, as far as it is to have as many and the rank has
    room; then each further slot goes to a rank with room where the layer has least and the rank has most left.
    """
    layers, ranks = live.shape
    room = np.zeros((layers, ranks), dtype=np.int64)
    left = slots.copy()
    total = np.zeros(layers, dtype=np.int64)
    for layer in range(layers):
        for r in range(ranks):
            room[layer, r] = due[layer, r]
            left[r] -= due[layer, r]
    for layer in range(layers):
        for r in range(ranks):
            keep = max(0, min(live[layer, r] - due[layer, r], capacity[layer, r] - due[layer, r], left[r]))
            room[layer, r] += keep
            left[r] -= keep
            total[layer] += room[layer, r]
    for layer in range(layers):
        while total[layer] > copies[layer]:
            r = int(np.argmax(room[layer] - due[layer]))
            room[layer, r] -= 1
            left[r] += 1
            total[layer] -= 1
    turn = 0
    progress = True
    while progress:
        progress = False
        for layer in range(layers):
            if total[layer] >= copies[layer]:
                continue
            best = -1
            for i in range(ranks):
                r = (i + turn) % ranks
                if left[r] < 1 or room[layer, r] >= capacity[layer, r]:
                    continue
                if (
                    best < 0
                    or room[layer, r] < room[layer, best]
                    or (room[layer, r] == room[layer, best] and left[r] > left[best])
                ):
                    best = r
            if best >= 0:
                room[layer, best] += 1
                left[best] -= 1
                total[layer] += 1
                progress = True
            turn += 1
    return room


@kernel
def house(work: Floats, hold: Bytes, room: Ints, may: Bytes, pin: Bytes) -> bool:
    """Make one layer's `hold [E, R]` fit its room, `may` and `pin` with few moves, in place; False where that fails.

    Pinned copies come, copies that may not be there go, then the lightest replicas of ranks above their room; an expert whose
    last copy has to go moves to a rank with room, or takes a replica's slot.
    """
    experts, ranks = hold.shape
    copies = np.zeros(experts, dtype=np.int64)
    used = np.zeros(ranks, dtype=np.int64)
    for e in range(experts):
        for r in range(ranks):
            hold[e, r] = (hold[e, r] and may[e, r]) or pin[e, r]
            copies[e] += hold[e, r]
            used[r] += hold[e, r]
    for r in range(ranks):
        while used[r] > room[r]:
            victim = -1
            for e in range(experts):
                if not hold[e, r] or pin[e, r]:
                    continue
                if (
                    victim < 0
                    or (copies[e] > 1 and copies[victim] < 2)
                    or ((copies[e] > 1) == (copies[victim] > 1) and work[e] / copies[e] < work[victim] / copies[victim])
                ):
                    victim = e
            if victim < 0:
                return False
            hold[victim, r] = 0
            copies[victim] -= 1
            used[r] -= 1
    for e in np.argsort(-work, kind="mergesort"):
        if copies[e] == 0 and not _find(e, hold, copies, used, room, may, pin, work):
            return False
    return True


@kernel
def _find(e: int, hold: Bytes, copies: Ints, used: Ints, room: Ints, may: Bytes, pin: Bytes, work: Floats) -> bool:
    """A place for a homeless expert: a free slot, a replica's slot, or that of an expert that can go elsewhere."""
    experts, ranks = hold.shape
    best = -1
    for r in range(ranks):
        if may[e, r] and used[r] < room[r] and (best < 0 or room[r] - used[r] > room[best] - used[best]):
            best = r
    if best >= 0:
        hold[e, best] = 1
        copies[e] = 1
        used[best] += 1
        return True
    victim = -1
    for r in range(ranks):
        if not may[e, r]:
            continue
        for v in range(experts):
            replica = hold[v, r] and copies[v] > 1 and not pin[v, r]
            if replica and (victim < 0 or work[v] / copies[v] < work[victim] / copies[victim]):
                victim = v
                best = r
    if victim >= 0:
        hold[victim, best] = 0
        hold[e, best] = 1
        copies[victim] -= 1
        copies[e] = 1
        return True
    for r in range(ranks):
        if not may[e, r]:
            continue
        for v in range(experts):
            if not hold[v, r] or pin[v, r]:
                continue
            for q in range(ranks):
                if may[v, q] and not hold[v, q] and used[q] < room[q]:
                    hold[v, r] = 0
                    hold[v, q] = 1
                    used[q] += 1
                    hold[e, r] = 1
                    copies[e] = 1
                    return True
    return False
