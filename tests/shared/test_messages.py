from __future__ import annotations

import inspect
import typing
from typing import Any

import msgspec
import orjson
import pytest

from moesaic.shared import messages
from moesaic.shared.arrays import pack
from moesaic.shared.messages import BadMessage, decode, encode

MESSAGES = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, messages.Part) and kind.__struct_config__.tag
]
EXAMPLES: dict[object, object] = {int: 3, float: 1.5, str: "x", bool: True, bytes: b"\1"}


def example(kind: object) -> object:
    """A value of a field's type, every optional part filled in."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is messages.IntArray:
        return pack([[1, 2]])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return filled(kind)
    if origin is typing.Literal:
        return args[0]
    if origin is tuple:
        return (example(args[0]),) if args[-1] is ... else tuple(example(arg) for arg in args)
    if origin is dict:
        return {example(args[0]): example(args[1])}
    return example(args[0]) if args else EXAMPLES[kind]


def filled(kind: type[msgspec.Struct]) -> msgspec.Struct:
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: example(hints[field.name]) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    message = filled(kind)
    assert decode(encode(message), kind) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_names_its_kind_and_version(kind: type[msgspec.Struct]) -> None:
    assert orjson.loads(encode(filled(kind)))["type"].endswith(".v1")


def test_no_two_messages_have_the_same_name() -> None:
    tags = [kind.__struct_config__.tag for kind in MESSAGES]
    assert len(set(tags)) == len(tags) > 10


def test_a_field_that_is_not_known_is_ignored() -> None:
    wire = orjson.dumps({"type": "cancel.v1", "request": "r", "from_the_future": 1})
    assert decode(wire, messages.Cancel) == messages.Cancel(request="r")


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"", "unexpected end|empty|EOF|zero-length"),
        (b"\xff\xfe", "utf|UTF"),
        (b"null", "Expected"),
        (b'{"type":"cancel.v2","request":"r"}', r"cancel\.v2"),
        (b'{"type":"cancel.v1"}', "request"),
        (b'{"type":"cancel.v1","request":7}', r"\$\.request"),
    ],
)
def test_bytes_that_are_no_message_are_refused_with_the_reason(wire: bytes, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        decode(wire, messages.Cancel)


def test_the_kind_tells_which_of_two_messages_came() -> None:
    either: Any = messages.Accepted | messages.Refused
    refused = messages.Refused(request="r", code="full", reason="no room")
    assert decode(encode(refused), either) == refused


def test_a_producer_numbers_from_one_and_a_new_boot_starts_again() -> None:
    one, two = messages.Sequencer("engine"), messages.Sequencer("engine")
    assert [one.next().seq, one.next().seq, two.next().seq] == [1, 2, 1]
    assert one.next().boot != two.next().boot


def member(engine: str, *, ready: bool) -> messages.Member:
    return messages.Member(
        engine=engine, boot="b", node="n", device="cpu", host="h", bell=1, slots=8, spare=2, ready=ready
    )


@pytest.mark.parametrize(
    ("store", "ready", "size", "formed"),
    [
        ("h:1", (True, True), 2, True),
        ("", (True, True), 2, False),
        ("h:1", (True, False), 2, False),
        ("h:1", (True,), 2, False),
    ],
)
def test_a_group_is_formed_when_all_are_ready_and_the_rendezvous_is_open(
    store: str, ready: tuple[bool, ...], size: int, formed: bool
) -> None:
    members = tuple(member(f"e{n}", ready=one) for n, one in enumerate(ready))
    group = messages.Group(
        group="g", generation=1, size=size, model="m", model_digest="d", layers=1, experts=1, top_k=1, slot_bytes=1,
        members=members, store=store,
    )  # fmt: skip
    assert group.formed is formed
    assert group.budget == (6,) * len(members)
    assert [group.rank_of(m.engine, m.boot) for m in members] == list(range(len(members)))
    assert group.rank_of("e0", "an earlier life") is None
