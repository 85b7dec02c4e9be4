"""The scheduler and its KV blocks, with made-up tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.engine.scheduling.blocks import Blocks
from moesaic.engine.scheduling.request import Request
from moesaic.engine.scheduling.scheduler import Limits, Scheduler
from moesaic.shared.messages import Sampling

SIZE = 4


def _request(name: str, prompt: list[int], outputs: int = 8) -> Request:
    return Request(name, Sampling(max_tokens=outputs), list(prompt), len(prompt))


def _scheduler(blocks: int = 32, tokens: int = 16, running: int = 8) -> Scheduler:
    return Scheduler(Limits(tokens, running, 100), Blocks(blocks, SIZE))


def _step(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    """One step; every sampled token is the request's length, so tokens tell positions."""
    chunks = scheduler.next()
    scheduler.advance(chunks, [(len(c.request.tokens),) if c.samples else () for c in chunks])
    for chunk in chunks:
        if chunk.request.outputs >= chunk.request.sampling.max_tokens:
            scheduler.remove(chunk.request.id)
    return [(c.request.id, c.first, c.count) for c in chunks]


def test_a_long_prompt_is_computed_in_chunks_while_running_requests_decode_first() -> None:
    scheduler = _scheduler(tokens=6)
    scheduler.add(_request("short", [1, 2]))
    assert _step(scheduler) == [("short", 0, 2)]
    scheduler.add(_request("long", list(range(12))))
    assert _step(scheduler) == [("short", 2, 1), ("long", 0, 5)]
    assert _step(scheduler) == [("short", 3, 1), ("long", 5, 5)]
    assert _step(scheduler) == [("short", 4, 1), ("long", 10, 2)]
    assert _step(scheduler) == [("short", 5, 1), ("long", 12, 1)]


def test_a_repeated_prefix_is_found_and_only_the_rest_computed() -> None:
    scheduler = _scheduler()
    scheduler.add(_request("a", [5] * 10, outputs=1))
    _step(scheduler)
    scheduler.add(_request("b", [5] * 10, outputs=1))
    assert _step(scheduler) == [("b", 8, 2)]
    assert scheduler.prefix_hits == 8
    assert scheduler.blocks.used == 0


def test_a_prompt_known_whole_still_computes_its_last_token() -> None:
    scheduler = _scheduler()
    for name in ("a", "b"):
        scheduler.add(_request(name, [5] * 8, outputs=1))
        last = _step(scheduler)
    assert last == [("b", 4, 4)]


def test_the_latest_request_gives_way_when_blocks_run_out_and_later_goes_on() -> None:
    scheduler = _scheduler(blocks=3)
    first, second = _request("first", [1] * 4, outputs=8), _request("second", [2] * 4, outputs=4)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(14):
        _step(scheduler)
    assert scheduler.preemptions >= 1
    assert first.tokens == [1] * 4 + list(range(4, 12))
    assert second.tokens == [2] * 4 + list(range(4, 8))
    assert scheduler.blocks.used == 0


def test_an_unfinished_step_is_planned_again_the_same() -> None:
    scheduler = _scheduler(tokens=6)
    scheduler.add(_request("a", list(range(9))))
    once = [(c.first, c.count) for c in scheduler.next()]
    assert [(c.first, c.count) for c in scheduler.next()] == once
    assert scheduler.blocks.used == 2


def test_a_resumed_request_counts_its_outputs_from_where_it_was() -> None:
    resumed = Request("r", Sampling(max_tokens=8), [1, 2, 3, 40, 41], prompt_length=3)
    scheduler = _scheduler()
    scheduler.add(resumed)
    assert resumed.outputs == 2
    _step(scheduler)
    assert resumed.outputs == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 3), st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=12
    ),
    st.integers(8, 20),
    st.integers(3, 24),
)
def test_whatever_comes_every_request_ends_with_its_own_tokens_and_no_block_leaks(
    arrivals: list[tuple[int, int, int, int]], blocks: int, budget: int
) -> None:
    scheduler = _scheduler(blocks=blocks, tokens=budget, running=4)
    requests = []
    for number, (length, kind, outputs, pause) in enumerate(arrivals):
        requests.append(_request(str(number), [kind] * length, outputs))
        scheduler.add(requests[-1])
        for _ in range(pause):
            _step(scheduler)
        if number % 5 == 4:
            scheduler.remove(str(number - 2))
    for _ in range(2000):
        planned = _step(scheduler)
        assert sum(count for _, _, count in planned) <= budget
        if not planned:
            break
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.blocks.used == 0
    cancelled = {n - 2 for n in range(len(arrivals)) if n % 5 == 4}
    for number, request in enumerate(requests):
        if number not in cancelled:
            assert request.tokens[request.prompt_length :] == list(range(request.prompt_length, len(request.tokens)))
            assert request.outputs == request.sampling.max_tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=16), st.booleans()), max_size=30))
def test_a_found_block_always_holds_the_tokens_it_was_found_for(steps: list[tuple[list[int], bool]]) -> None:
    blocks = Blocks(8, SIZE)
    content: dict[int, tuple[int, ...]] = {}
    held: list[list[int]] = []
    for tokens, keep in steps:
        found, name = blocks.find(tokens)
        for index, block in enumerate(found):
            assert content[block] == tuple(tokens[: (index + 1) * SIZE])
        taken = blocks.take(-(-len(tokens) // SIZE) - len(found))
        if taken is None:
            blocks.give(found)
            if held:
                blocks.give(held.pop(0))
            continue
        for index, block in enumerate(taken, start=len(found)):
            if (index + 1) * SIZE <= len(tokens):
                content[block] = tuple(tokens[: (index + 1) * SIZE])
                name = blocks.name(tokens[index * SIZE : (index + 1) * SIZE], block, name)
        held.append(found + taken)
        if not keep:
            blocks.give(held.pop())
    for owned in held:
        blocks.give(owned)
    assert blocks.used == 0
