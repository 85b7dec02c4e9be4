"""Placements and files as people have them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from moesaic.planner.formats import Recording, read_load, read_placement
from moesaic.shared.messages import encode
from moesaic.shared.placement import State, layer_of
from planner.samples import skewed, window

EVEN: State = (layer_of([[0, 1, 2], [0, 3, 4]]), layer_of([[0, 2, 4], [1, 2, 3]]))
"""Two layers, two ranks, five experts, three slots everywhere."""
UNEVEN: State = (layer_of([[0, 1], [0, 2, 3]]), layer_of([[0, 1, 2, 3], [1]]))
"""Slots differ over ranks and layers."""
SHARED: State = (layer_of([[0, 1], [0, 2]], {(0, 0): 700, (1, 0): 324}),)
"""Copies of expert 0 with shares of their own."""


@st.composite
def states(draw: st.DrawFn, *, even: bool = False) -> State:
    """Valid placements: experts dealt in a drawn order; where `even`, as many on every rank in every layer."""
    ranks, slots, layers = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    experts = draw(st.integers(slots, ranks * slots))
    state = []
    for _ in range(layers):
        deal = draw(st.permutations(range(experts)))
        held = [{deal[(rank * slots + k) % experts] for k in range(slots)} for rank in range(ranks)]
        if not even:
            rank = draw(st.integers(0, ranks - 1))
            held[rank] |= set(draw(st.lists(st.integers(0, experts - 1), max_size=3)))
        state.append(layer_of(held))
    return tuple(state)


def put(folder: Path, name: str, data: bytes) -> Path:
    """A file with these bytes."""
    path = folder / name
    path.write_bytes(data)
    return path


def pt(content: Any) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    """What numpy.savez writes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    """What numpy.save writes."""
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def rezipped(data: bytes, **members: bytes | None) -> bytes:
    """The same archive with some members replaced, or left out."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            content = members.get(name.split("/", 1)[1].replace("/", "_").replace(".", "_"), old.read(name))
            if content is not None:
                new.writestr(name, content)
    return file.getvalue()


def lines(*windows: bytes) -> bytes:
    """An NDJSON file."""
    return b"".join(line + b"\n" for line in windows)


def line(seq: int, hot: int = 0) -> bytes:
    """One window of the monitor."""
    return encode(window(skewed(hot), seq))


def dump(folder: Path, step: int, rank: int, text: str) -> Path:
    """One of OmniPlacement's dumps."""
    return put(folder, f"activation_counts_recordstep_{step}_rank_{rank}.txt", text.encode())


def loaded(folder: Path, name: str, data: bytes) -> Recording:
    """A recording from these bytes."""
    return read_load(put(folder, name, data))


def placed(folder: Path, name: str, data: bytes, **options: Any) -> State:
    """A placement from these bytes."""
    return read_placement(put(folder, name, data), **options)
