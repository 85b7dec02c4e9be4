"""Which life of each engine is the present one, and which of its messages are missing. Pure."""

from __future__ import annotations

from moesaic.shared.messages import Source


class Lives:
    """An engine's boot ids in the order in which they appeared; a former one never comes back."""

    def __init__(self) -> None:
        self._boots: dict[str, list[str]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def boot(self, engine: str) -> str | None:
        """The present life."""
        boots = self._boots.get(engine)
        return boots[-1] if boots else None

    def see(self, source: Source) -> bool:
        """Note who speaks. False: it is a message of a former life."""
        boots = self._boots.setdefault(source.producer, [])
        if source.boot in boots[:-1]:
            return False
        if not boots or boots[-1] != source.boot:
            self._numbers = {key: seq for key, seq in self._numbers.items() if key[0] != source.producer}
            boots.append(source.boot)
        return True

    def missed(self, source: Source) -> int:
        """How many messages before this one have not arrived. Messages to one gateway begin at 1."""
        key = (source.producer, source.boot)
        last = self._numbers.get(key, 0)
        self._numbers[key] = max(last, source.seq)
        return max(0, source.seq - last - 1)
