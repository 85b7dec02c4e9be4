"""The pickle inside a `.pt` file, for plain values and tensors only.

A stack machine of its own instead of `pickle`: it knows the opcodes that `torch.save` uses, looks no name up, calls nothing,
and turns tensors into descriptions. Whatever else a file asks for is refused by its name.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moesaic.planner.formats.errors import FormatError

REBUILD = "torch._utils._rebuild_tensor_v2"
ORDERED = "collections.OrderedDict"
_STORAGE = re.compile(r"torch\.[A-Za-z0-9]+Storage")
_MARK = object()
_NAMES = {op.code.encode("latin-1"): op.name for op in pickletools.opcodes}


@dataclass(frozen=True)
class Symbol:
    """A global name that a pickle may use; it stands for itself."""

    name: str


@dataclass(frozen=True)
class Storage:
    """Raw values beside the pickle: their type's name, the member's key, how many."""

    kind: str
    key: str
    numel: int


@dataclass(frozen=True)
class Tensor:
    """A strided view of a storage; offset and strides in values."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def loads(data: bytes, where: str) -> object:
    """The pickled value; tensors are Tensor. Raises FormatError."""
    machine = _Machine(data, where)
    while (code := machine.take(1)) != b".":
        step = _OPCODES.get(code)
        if step is None:
            raise machine.broken(f"opcode {_NAMES.get(code, code.hex())} is none that plain tensors need")
        step(machine)
    return machine.pop()


class _Machine:
    """Stack and memo of one pickle."""

    def __init__(self, data: bytes, where: str) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._data = data
        self._at = 0
        self._where = where

    def broken(self, reason: str) -> FormatError:
        return FormatError(f"{self._where}: byte {self._at}: {reason}")

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise self.broken(f"cut off, expected {count} more bytes")
        self._at += count
        return taken

    def skip(self, count: int) -> None:
        self.take(count)

    def line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise self.broken("cut off in a name")
        return self.take(end + 1 - self._at)[:-1].decode("latin-1")

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, form: str) -> None:
        data = self.take(self.number(form))
        self.stack.append(data.decode("utf-8", "replace"))

    def long(self) -> None:
        self.stack.append(int.from_bytes(self.take(self.number("<B")), "little", signed=True))

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise self.broken("expected a value on the stack")
        return self.stack.pop()

    def popped(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def since_mark(self) -> list[Any]:
        values = []
        while self.stack and self.stack[-1] is not _MARK:
            values.append(self.stack.pop())
        if not self.stack:
            raise self.broken("expected a mark on the stack")
        self.stack.pop()
        return values[::-1]

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1] if self.stack else self.pop()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise self.broken(f"nothing is remembered as {index}")
        self.stack.append(self.memo[index])

    def name(self, module: object, name: object) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "?"
        if full not in {REBUILD, ORDERED} and not _STORAGE.fullmatch(full):
            raise self.broken(f"{full[:80]} is refused, only tensors and plain values are read")
        self.stack.append(Symbol(full))

    def set_items(self, items: list[Any]) -> None:
        target = self.pop()
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values) or any(type(k) not in {str, int} for k in keys):
            raise self.broken("expected keys (strings or integers) and values of a dict")
        target.update(zip(keys, values, strict=True))
        self.stack.append(target)

    def extend(self, items: list[Any]) -> None:
        target = self.pop()
        if type(target) is not list:
            raise self.broken("expected a list to append to")
        target.extend(items)
        self.stack.append(target)

    def persistent(self) -> None:
        match self.pop():
            case ("storage", Symbol(kind), str(key), str(), int(numel)) if _STORAGE.fullmatch(kind) and numel >= 0:
                self.stack.append(Storage(kind, key, numel))
            case _:
                raise self.broken("expected the reference of a tensor storage")

    def reduce(self) -> None:
        function, arguments = self.popped(2)
        match function, arguments:
            case Symbol(name), () if name == ORDERED:
                self.stack.append({})
            case Symbol(name), (Storage() as storage, int(offset), tuple(size), tuple(stride), *_) if name == REBUILD:
                if len(size) != len(stride) or any(type(n) is not int or n < 0 for n in (offset, *size, *stride)):
                    raise self.broken("expected a tensor's offset, size and stride, as many and none negative")
                self.stack.append(Tensor(storage, offset, size, stride))
            case _:
                raise self.broken("expected the arguments of a tensor or of an empty OrderedDict")


_OPCODES: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: m.skip(1),  # protocol
    b"\x95": lambda m: m.skip(8),  # frame
    b"(": lambda m: m.stack.append(_MARK),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"G": lambda m: m.stack.append(m.number(">d")),
    b"\x8a": _Machine.long,
    b"X": lambda m: m.text("<I"),
    b"\x8c": lambda m: m.text("<B"),
    b"}": lambda m: m.stack.append({}),
    b"]": lambda m: m.stack.append([]),
    b")": lambda m: m.stack.append(()),
    b"\x85": lambda m: m.stack.append(tuple(m.popped(1))),
    b"\x86": lambda m: m.stack.append(tuple(m.popped(2))),
    b"\x87": lambda m: m.stack.append(tuple(m.popped(3))),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),
    b"s": lambda m: m.set_items(m.popped(2)),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"a": lambda m: m.extend(m.popped(1)),
    b"e": lambda m: m.extend(m.since_mark()),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": lambda m: m.name(*m.popped(2)),
    b"Q": _Machine.persistent,
    b"R": _Machine.reduce,
}
