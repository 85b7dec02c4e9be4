"""Functions over numpy arrays, compiled to machine code. Needs numba, an extra."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile at the first call; kept on disk where there is a place for it, so later processes do not compile again."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder to write to
        return cast(F, numba.njit(nogil=True)(function))
