"""Several real ranks over torch.distributed: same tokens, switches in mid-decode, refusals, lost ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psutil
import pytest
from msgspec.structs import replace

from engine.placements import placement, shuffled
from engine.prompts import PROMPTS, ids
from engine.ranks import Ranks
from moesaic.shared.arrays import unpack
from moesaic.shared.messages import PHASES, Sampling
from moesaic.shared.placement import in_order, layer_of

Tokens = dict[str, list[int]]
SHORT, LONG = 40, 150


def _submit(ranks: Ranks, rank: int, name: str, prompt: str, max_tokens: int) -> None:
    temperature, seed = (0.8, PROMPTS.index(prompt)) if PROMPTS.index(prompt) % 2 else (0.0, 0)
    ranks.submit(rank, name, ids(prompt), max_tokens=max_tokens, ignore_eos=True, temperature=temperature, seed=seed)


def _first(tokens: Tokens, count: int) -> Tokens:
    return {name: outputs[:count] for name, outputs in tokens.items()}


def _submit_all(ranks: Ranks, n: int, max_tokens: int = SHORT) -> list[str]:
    for i, prompt in enumerate(PROMPTS):
        _submit(ranks, i % n, f"p{i}", prompt, max_tokens)
    return [f"p{i}" for i in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def reference() -> Tokens:
    """Exact tokens of a single rank, one request after the other."""
    with Ranks(1, mode="exact") as one:
        one.form()
        for i, prompt in enumerate(PROMPTS):
            _submit(one, 0, f"p{i}", prompt, LONG)
            one.finish(f"p{i}")
        return one.tokens


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_tokens_are_bitwise_the_same_on_any_number_of_ranks(n: int, reference: Tokens) -> None:
    with Ranks(n, mode="exact") as ranks:
        ranks.form()
        ranks.finish(*_submit_all(ranks, n))
        assert ranks.tokens == _first(reference, SHORT)


def test_tokens_are_the_same_in_small_chunks_with_preemption_and_prefix_hits(reference: Tokens) -> None:
    with Ranks(1, mode="exact", step_tokens=8, kv_tokens=112, block_size=4) as ranks:
        ranks.form()
        ranks.finish(*_submit_all(ranks, 1))
        assert ranks.tokens == _first(reference, SHORT)
        for name in ("again", "once more"):
            _submit(ranks, 0, name, PROMPTS[0], SHORT)
            ranks.finish(name)
            assert ranks.tokens[name] == reference["p0"][:SHORT]
        status = ranks.ask(0, "status")
        assert status.preemptions > 0
        assert status.prefix_hits > 0
        assert status.kv_blocks_used == 0


@pytest.mark.parametrize("n", [2, 3])
def test_five_placements_in_mid_decode_change_no_token_and_move_experts(n: int, reference: Tokens) -> None:
    with Ranks(n, mode="exact", spare_slots=4) as ranks:
        group = ranks.form()
        names = _submit_all(ranks, n, LONG)
        for epoch in range(1, 6):
            ranks.offer(epoch, placement(group, shuffled(group, epoch)))
            ranks.until(partial(ranks.switched, epoch))
        assert not any(name in ranks.ended for name in names), "the last switch came after the last token"
        ranks.finish(*names)
        assert ranks.tokens == reference
        commits = ranks.reports("committed")
        assert [r.epoch for r in commits] == sorted(r.epoch for r in commits)
        assert all(sum(r.moves for r in commits if r.epoch == epoch) > 20 for epoch in range(1, 6))
        assert len({r.step for r in commits}) == len(commits)
        assert ranks.load(0).epoch == ranks.load(n - 1).epoch == 5


@pytest.fixture
def two() -> Iterator[Ranks]:
    with Ranks(2, mode="exact") as ranks:
        ranks.form()
        yield ranks


def _refusals(ranks: Ranks, epoch: int) -> list[str]:
    return [r.reason for r in ranks.reports("refused") if r.epoch == epoch]


def _refused(ranks: Ranks, epoch: int) -> bool:
    return bool(_refusals(ranks, epoch))


def test_bad_placements_are_refused_with_their_reason_and_serving_goes_on(two: Ranks, reference: Tokens) -> None:
    group = two.group
    assert group is not None
    names = _submit_all(two, 2)
    good = placement(group, shuffled(group, 1))
    homeless = replace(good.layers[2], experts=(good.layers[2].experts[0][1:], good.layers[2].experts[1]))
    homeless = replace(homeless, shares=tuple(tuple(1 for _ in held) for held in homeless.experts))
    twice = replace(
        good.layers[0], experts=((*good.layers[0].experts[0], good.layers[0].experts[0][0]), good.layers[0].experts[1])
    )
    twice = replace(twice, shares=tuple(tuple(1 for _ in held) for held in twice.experts))
    everywhere = tuple(layer_of([range(group.experts)] * 2) for _ in range(group.layers))
    bad = {
        2: (replace(good, layers=(*good.layers[:2], homeless, *good.layers[3:])), "homeless"),
        3: (replace(good, layers=(twice, *good.layers[1:])), "there twice"),
        4: (replace(good, layers=everywhere), "slots, it has"),
        5: (replace(good, generation=9), "generation 9"),
        6: (replace(good, model_digest="another"), "for model another"),
        7: (replace(good, layers=good.layers[:3]), "3 layers"),
    }
    for epoch, (offered, reason) in bad.items():
        two.offer(epoch, offered)
        two.until(partial(_refused, two, epoch))
        assert reason in _refusals(two, epoch)[0]
    two.offer(8, good)
    two.until(partial(two.switched, 8))
    two.offer(1, good)
    two.until(lambda: bool(_refusals(two, 1)))
    assert "older" in _refusals(two, 1)[0]
    two.finish(*names)
    assert two.tokens == _first(reference, SHORT)
    assert {r.epoch for r in two.reports("committed")} == {8}


def test_a_newer_placement_replaces_one_that_is_still_staging(two: Ranks, reference: Tokens) -> None:
    group = two.group
    assert group is not None
    names = _submit_all(two, 2)
    for epoch in range(1, 9):
        two.offer(epoch, placement(group, shuffled(group, epoch)))
    two.until(partial(two.switched, 8))
    two.finish(*names)
    assert two.tokens == _first(reference, SHORT)


def test_a_rank_that_lags_delays_the_commit_and_not_the_steps(two: Ranks) -> None:
    group = two.group
    assert group is not None
    target = placement(group, shuffled(group, 3))
    two.ranks[0].tell("offer", 1, target)
    two.submit(0, "r", ids(PROMPTS[0]), max_tokens=30, ignore_eos=True)
    two.finish("r")
    assert not two.reports("committed")
    two.ranks[1].tell("offer", 1, target)
    two.until(lambda: any(r.instalment == r.instalments for r in two.reports("committed", rank=1)))


def _cpu_seconds(ranks: Ranks) -> float:
    times = [psutil.Process(rank.process.pid).cpu_times() for rank in ranks.ranks]
    return float(sum(t.user + t.system for t in times))


def test_an_idle_group_parks_and_any_rank_wakes_it(two: Ranks) -> None:
    for turn, rank in enumerate((1, 0, 1)):
        two.submit(rank, f"r{turn}", ids(PROMPTS[2]), max_tokens=5)
        two.finish(f"r{turn}")
    two.pump(0.2)
    before = _cpu_seconds(two)
    two.pump(1.0)
    assert _cpu_seconds(two) - before < 0.3, "the ranks spin"


def test_a_killed_rank_ends_the_generation_and_the_survivor_goes_on_in_the_next(two: Ranks, reference: Tokens) -> None:
    group = two.group
    assert group is not None
    two.offer(1, placement(group, shuffled(group, 1)))
    _submit(two, 0, "p0", PROMPTS[0], LONG)
    two.until(lambda: len(two.tokens.get("p0", [])) > 5)
    two.kill(1)
    two.until(lambda: any(kind == "lost" for _, kind, _ in two.heard), "loss")
    assert "p0" not in two.ended
    two.restart(1)
    state = shuffled(group, 4)
    two.form(generation=2, epoch=6, placement=replace(placement(group, state), generation=1))
    two.finish("p0")
    assert two.tokens["p0"] == reference["p0"]
    assert two.load(1).epoch == 6


def test_a_rank_killed_while_the_group_is_parked_is_noticed(two: Ranks) -> None:
    two.pump(0.2)
    two.kill(1)
    two.until(lambda: any(kind == "lost" and rank == 0 for rank, kind, _ in two.heard), "loss")


def test_a_rank_silent_inside_a_step_ends_the_generation_after_the_peer_timeout() -> None:
    with Ranks(2, mode="exact", peer_timeout_s=2.0) as two:
        two.form()
        _submit(two, 0, "p0", PROMPTS[0], LONG)
        two.until(lambda: len(two.tokens.get("p0", [])) > 3)
        frozen = psutil.Process(two.ranks[1].process.pid)
        frozen.suspend()
        two.until(lambda: any(kind == "lost" and rank == 0 for rank, kind, _ in two.heard), "loss")
        frozen.resume()
        two.until(lambda: any(kind == "lost" and rank == 1 for rank, kind, _ in two.heard), "its own loss")
        two.form(generation=2)
        two.finish("p0")


def test_a_leaving_rank_ends_the_generation_for_all_at_one_step(two: Ranks) -> None:
    two.ranks[1].tell("leave")
    two.until(lambda: sum(kind == "lost" for _, kind, _ in two.heard) == 2)
    reasons = {value[1] for _, kind, value in two.heard if kind == "lost"}
    assert reasons == {"rank 1 leaves"}


def test_cancelling_frees_everything_at_any_moment(two: Ranks) -> None:
    for i in range(6):
        two.submit(i % 2, f"c{i}", ids(PROMPTS[i]) * 4, max_tokens=500, ignore_eos=True)
    two.until(lambda: len(two.tokens) >= 3)
    for i in range(6):
        two.ranks[i % 2].tell("cancel", f"c{i}")
    two.submit(0, "last", ids("x"), max_tokens=2, ignore_eos=True)
    two.finish("last")
    for rank in (0, 1):
        status = two.ask(rank, "status")
        assert (status.running, status.waiting, status.kv_blocks_used) == (0, 0, 0)


def test_counters_count_each_token_once_without_padding(two: Ranks) -> None:
    for i, prompt in enumerate(PROMPTS):
        two.submit(i % 2, f"p{i}", ids(prompt), max_tokens=8, ignore_eos=True)
    two.finish(*(f"p{i}" for i in range(len(PROMPTS))))
    assert two.group is not None
    loads = [two.load(0), two.load(1)]
    prompts = [sum(len(ids(p)) for p in PROMPTS[rank::2]) for rank in (0, 1)]
    for load, length in zip(loads, prompts, strict=True):
        assert unpack(load.phases["prefill"].tokens).sum(axis=1).tolist() == [length * two.group.top_k] * 4
        assert unpack(load.phases["decode"].tokens).sum(axis=1).tolist() == [3 * 7 * two.group.top_k] * 4
    for phase in PHASES:
        one, other = (load.phases[phase] for load in loads)
        assert one.cost_max == other.cost_max
        executed = unpack(one.executed_tokens) + unpack(other.executed_tokens)
        assert (executed == unpack(one.cost_total)).all()
        assert (unpack(one.cost_best) <= unpack(one.cost_max)).all()


def test_requests_that_cannot_be_are_refused(two: Ranks) -> None:
    def refusal(tokens: list[int], **sampling: object) -> str:
        from moesaic.shared.messages import Generate

        wanted = Sampling(**({"max_tokens": 5} | sampling))  # type: ignore[arg-type]
        request = Generate(request="x", gateway="w", model="m", tokens=tuple(tokens), sampling=wanted)
        return str(two.ask(0, "submit", request).code)

    assert refusal([]) == "invalid"
    assert refusal([6144]) == "invalid"
    assert refusal([1], max_tokens=0) == "invalid"
    assert refusal([1], top_p=0.0) == "invalid"
    assert refusal([1], temperature=float("nan")) == "invalid"
    assert refusal([1] * 2040, max_tokens=9) == "too_long"


def test_the_default_placement_serves_experts_that_do_not_divide() -> None:
    assert [len(held) for held in in_order(2, 7, 3)[1].experts] == [3, 2, 2]
