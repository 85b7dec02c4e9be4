"""What a service says of nonsense on the bus: every message counted, one log line a minute."""

from __future__ import annotations

from moesaic.shared.log import Log

EVERY_S = 60.0


class Complaints:
    """Counts bad messages; logs the first and then at most one a minute with the number unsaid. The clock is passed in."""

    def __init__(self, log: Log) -> None:
        self.count = 0
        self._log = log
        self._unsaid = 0
        self._said_at: float | None = None

    def add(self, subject: str, reason: str, now: float) -> None:
        """One bad message; `now` in seconds of any steady clock."""
        self.count += 1
        if self._said_at is not None and now - self._said_at < EVERY_S:
            self._unsaid += 1
            return
        self._log.warning("bad message ignored", subject=subject, reason=reason, more_since_last=self._unsaid)
        self._said_at, self._unsaid = now, 0
