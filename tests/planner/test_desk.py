from __future__ import annotations

import msgspec
import pytest

from moesaic.shared import subjects
from moesaic.shared.bus import ServiceError
from moesaic.shared.memory_bus import MemoryBroker
from moesaic.shared.placement import in_order
from planner.mesh import CONFIG, Others, planning
from planner.samples import record, skewed

PATIENT = msgspec.structs.replace(CONFIG, interval_ms=600_000, min_tokens=1e9)


async def loaded(others: Others) -> None:
    await others.load(skewed())
    await others.until(lambda shown: shown["tokens_per_expert"] > 0)


async def test_a_dry_run_tells_the_moves_and_stores_nothing() -> None:
    async with planning(MemoryBroker(), PATIENT) as others:
        await loaded(others)
        answer = await others.ask("dry_run", group="g")
        assert answer["forecast"]["moves"] == len(answer["moves"]) > 0
        assert answer["would_move"]
        assert await (await others.bus.bucket(subjects.PLACEMENTS)).keys() == []


async def test_plan_moves_now_whatever_the_interval_and_only_once() -> None:
    async with planning(MemoryBroker(), PATIENT) as others:
        await loaded(others)
        answer = await others.ask("plan")
        assert (answer["proposed"], (await others.event("proposed")).epoch) == (True, answer["epoch"])
        with pytest.raises(ServiceError, match="on its way"):
            await others.ask("plan")


async def test_a_paused_group_is_not_planned_until_it_is_resumed() -> None:
    async with planning(MemoryBroker()) as others:
        await others.ask("pause")
        await loaded(others)
        await others.until(lambda shown: shown["decisions"][0]["kind"] == "paused")
        await others.ask("resume")
        await others.load(skewed())
        await others.event("proposed")


async def test_roll_back_returns_to_what_was_live_before_and_holds() -> None:
    async with planning(MemoryBroker()) as others:
        await others.load(skewed())
        first = (await others.event("proposed")).epoch
        await others.engines("committed", first)
        await others.load(skewed(), epoch=first, instalment=1)
        await others.until(lambda shown: shown["epoch"] == first)
        answer = await others.ask("roll_back")
        epoch, placement = await others.stored()
        assert answer == {"group": "g", "epoch": epoch, "content_of": 0}
        assert placement.layers == in_order(2, 8, 2)
        await others.until(lambda shown: shown["waits_s"] > 50)


async def test_roll_back_to_an_epoch_nobody_knows_is_not_found() -> None:
    async with planning(MemoryBroker()) as others:
        with pytest.raises(ServiceError) as caught:
            await others.ask("roll_back", epoch=99)
        assert caught.value.code == 404


async def test_status_names_the_last_decision_with_its_reason() -> None:
    async with planning(MemoryBroker(), PATIENT) as others:
        await loaded(others)
        shown = await others.until(lambda shown: bool(shown["decisions"]))
        last = shown["decisions"][0]
        assert (last["kind"], "are needed" in last["reason"]) == ("few_tokens", True)


async def test_a_bucket_that_lost_its_state_is_noticed_and_written_anew() -> None:
    broker = MemoryBroker()
    async with planning(broker, PATIENT) as others:
        await loaded(others)
        await others.ask("plan")
        proposed = await others.event("proposed")
        await others.engines("committed", proposed.epoch)
        await others.load(skewed(4), epoch=proposed.epoch, instalment=1)
        await others.until(lambda shown: shown["epoch"] == proposed.epoch)
        broker.buckets[subjects.PLACEMENTS].keys.clear()  # the bus has lost its state
        with pytest.raises(ServiceError, match="Conflict"):
            await others.ask("roll_back")
        assert (await others.ask("roll_back"))["content_of"] == 0


async def test_orders_are_kept_and_shown_and_taken_back() -> None:
    broker, roomy = MemoryBroker(), record(ranks=3, extra=8)
    async with planning(broker, PATIENT, group=roomy) as others:
        await others.ask("pin", layer=1, expert=7, rank=0)
        shown = await others.ask("forbid", rank=1)  # pinned to rank 0 only
        assert shown == {"group": "g", "pinned": [{"layer": 1, "expert": 7, "rank": 0}], "forbidden": [1]}
    async with planning(broker, PATIENT, group=roomy) as others:
        group = (await others.ask("status"))["groups"]["g"]
        assert (group["forbidden"], len(group["pinned"])) == ([1], 1)
        await others.ask("allow", rank=1)
        shown = await others.ask("unpin", layer=1, expert=7, rank=0)
        assert (shown["pinned"], shown["forbidden"]) == ([], [])


async def test_a_pinned_copy_comes_without_any_load() -> None:
    async with planning(MemoryBroker()) as others:
        await others.ask("pin", layer=1, expert=7, rank=0)
        await others.event("proposed")
        _, placement = await others.stored()
        assert 7 in placement.layers[1].experts[0]


async def test_orders_that_make_no_sense_are_refused() -> None:
    async with planning(MemoryBroker(), PATIENT) as others:
        wrong = [
            ("pin", {"layer": 2, "expert": 0, "rank": 0}, "layer is from 0 to 1, not 2"),
            ("pin", {"layer": 0, "expert": 0}, "name layer, expert and rank"),
            ("unpin", {"layer": 0, "expert": 0, "rank": 0}, "is not pinned"),
            ("forbid", {"rank": 5}, "name a rank from 0 to 1"),
            ("allow", {"rank": 1}, "is not forbidden"),
        ]
        for endpoint, order, text in wrong:
            with pytest.raises(ServiceError, match=text):
                await others.ask(endpoint, **order)
        await others.form(record(extra=0))
        await others.until(lambda shown: shown["budget"] == [8, 8])
        with pytest.raises(ServiceError, match="do not fit in the 8 slots"):
            await others.ask("forbid", rank=0)
