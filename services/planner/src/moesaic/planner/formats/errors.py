"""What goes wrong with a file."""

from __future__ import annotations


class FormatError(ValueError):
    """A file that cannot be read or written; the text names it, where it broke and what was expected."""
