"""KV blocks: who owns which, and which still hold a prefix worth finding again.

A full block's content is named by (name of the block before it, its tokens), so a chain of names is exact: no hash can
collide. A block nobody owns keeps its name until it is needed for something else, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]
ROOT = 0
"""Name before the first block."""


class Blocks:
    """A pool of `total` blocks of `size` tokens."""

    def __init__(self, total: int, size: int) -> None:
        self.total = total
        self.size = size
        self._owners = [0] * total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._key_of: dict[int, Key] = {}
        self._named: dict[Key, tuple[int, int]] = {}  # key -> (block, its name)
        self._names = ROOT

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that somebody owns."""
        return self.total - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Own `count` blocks, or none at all."""
        if count > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget(block)
            self._owners[block] = 1
        return taken

    def find(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Own the blocks of the longest known prefix, leaving at least one token to compute; and the last one's name."""
        found = []
        name = ROOT
        for start in range(0, len(tokens) - self.size, self.size):
            known = self._named.get((name, tuple(tokens[start : start + self.size])))
            if known is None:
                break
            block, name = known
            self._free.pop(block, None)
            self._owners[block] += 1
            found.append(block)
        return found, name

    def name(self, tokens: Sequence[int], block: int, parent: int) -> int:
        """Remember a full block's tokens after the block named `parent`; its name."""
        key = (parent, tuple(tokens))
        known = self._named.get(key)
        if known is None:
            self._forget(block)
            self._names += 1
            known = self._named[key] = (block, self._names)
            self._key_of[block] = key
        return known[1]

    def give(self, blocks: Sequence[int]) -> None:
        """Give blocks up. The last of a chain is reused first, so that prefixes outlive their ends."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free[block] = None

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._named[key]
