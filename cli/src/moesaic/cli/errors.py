"""What ends a command with one line."""

from __future__ import annotations


class Stop(Exception):
    """The command cannot go on; the text says why and what to do. `status` is the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status
