"""File formats in which people keep expert placements and recorded expert load."""

from __future__ import annotations

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.load import LOAD_FORMATS, read_load
from moesaic.planner.formats.placement import PLACEMENT_FORMATS, read_placement, write_placement
from moesaic.planner.formats.recording import Recording

__all__ = [
    "LOAD_FORMATS",
    "PLACEMENT_FORMATS",
    "FormatError",
    "Recording",
    "read_load",
    "read_placement",
    "write_placement",
]
