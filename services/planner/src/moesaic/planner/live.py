"""Which placement a group runs now, and the contents of its epochs. Pure."""

from __future__ import annotations

from moesaic.shared.messages import Group, Placement
from moesaic.shared.placement import PlacementError, State, check_state, in_order

KEPT = 16
"""Revisions whose content is remembered, as many as the bucket keeps."""


class Live:
    """One group's. Until an engine tells the epoch, it is the one that a new generation starts from."""

    def __init__(self) -> None:
        self.record: Group | None = None
        self.epoch = 0
        self.confirmed = False
        self.unknown: int | None = None
        """The epoch an engine named last, if its content is not known."""
        self.latest = 0
        """Newest revision of the group's key in KV."""
        self.settled: list[int] = []
        """Epochs that were live in all instalments, oldest first, without repeats in a row."""
        self._contents: dict[int, Placement] = {}
        self._states: dict[int, State | None] = {}

    def begin(self, record: Group) -> None:
        """A new generation's record."""
        self.confirmed, self.unknown = False, None
        self.update(record)

    def update(self, record: Group) -> None:
        """The same generation's record again: members may have come."""
        self.record = record
        self._states.clear()
        if not self.confirmed:
            self._infer()

    def stored(self, revision: int, placement: Placement | None) -> bool:
        """A revision of the group's key (None: deleted or unreadable); whether it is the newest so far."""
        if placement is not None:
            self._contents[revision] = placement
            self._states.pop(revision, None)
            for old in sorted(self._contents)[: -2 * KEPT]:
                del self._contents[old]
        if revision <= self.latest:
            return False
        self.latest = revision
        if not self.confirmed:
            self._infer()
        return True

    def _infer(self) -> None:
        if self.record is not None:
            self.epoch = self.latest if self.state(self.latest) is not None else 0
            self.settle(self.epoch)

    def reported(self, generation: int, epoch: int) -> bool:
        """An engine runs this epoch. False where that cannot be so or its content is not known."""
        if self.record is None or generation != self.record.generation:
            return False
        if self.confirmed and epoch < self.epoch:
            return True  # said before the switch
        self.unknown = epoch if self.state(epoch) is None else None
        if self.unknown is None:
            self.epoch, self.confirmed = epoch, True
        return self.unknown is None

    def settle(self, epoch: int) -> None:
        """This epoch is live in all instalments."""
        if not self.settled or self.settled[-1] != epoch:
            self.settled = [*self.settled, epoch][-KEPT:]

    def correct(self, newest: int) -> None:
        """The bucket has lost its state: its newest revision is no more than this (0: none)."""
        self.latest = min(self.latest, newest)

    def state(self, epoch: int) -> State | None:
        """The content of an epoch that this generation can run, or None."""
        if epoch not in self._states:
            self._states[epoch] = self._read(epoch)
        return self._states[epoch]

    def _read(self, epoch: int) -> State | None:
        record, placement = self.record, self._contents.get(epoch)
        if record is None:
            return None
        if epoch == 0:
            return in_order(record.layers, record.experts, record.size)
        if placement is None or placement.model_digest != record.model_digest:
            return None
        shape = {"layers": record.layers, "experts": record.experts, "ranks": record.size}
        try:
            check_state(placement.layers, slots=_budget(record), **shape)
        except PlacementError:
            return None
        return placement.layers

    def content(self, epoch: int) -> Placement | None:
        """What is stored under an epoch, whether it fits or not; None where there is nothing readable."""
        return self._contents.get(epoch)

    def before(self, epoch: int) -> int | None:
        """The last epoch that was live before this one and whose content differs from it."""
        content = self.state(epoch)
        others = (e for e in reversed(self.settled) if e != epoch and self.state(e) not in {None, content})
        return next(others, None)


def _budget(record: Group) -> tuple[int, ...]:
    """Slots per rank; without limit for ranks not claimed yet."""
    return (*record.budget, *(1 << 30 for _ in range(record.size - len(record.members))))
