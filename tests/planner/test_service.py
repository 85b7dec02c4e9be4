from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moesaic.monitor.config import MonitorConfig
from moesaic.monitor.service import open_service as open_monitor
from moesaic.planner.config import PlannerConfig
from moesaic.planner.service import open_service
from moesaic.shared import subjects
from moesaic.shared.arrays import pack
from moesaic.shared.bus import ServiceError
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import Load, PhaseLoad, PlacementEvent, Source, decode, encode
from moesaic.shared.placement import check, in_order
from moesaic.shared.service import Fatal
from planner.mesh import CONFIG, planning
from planner.samples import record, skewed


async def test_a_load_window_leads_to_a_placement_in_kv_and_an_audit_event() -> None:
    async with planning(MemoryBroker()) as others:
        await others.load(skewed())
        event = await others.event("proposed")
        epoch, placement = await others.stored()
        check(placement, record())
        assert (event.epoch, event.forecast) == (epoch, placement.forecast)
        kept = await others.bus.last(subjects.EVENTS, subjects.placement(), 10)
        assert [decode(data, PlacementEvent).event for data in kept] == ["proposed"]


async def test_from_counters_to_a_placement() -> None:
    broker = MemoryBroker()
    async with planning(broker) as others, open_monitor(MonitorConfig(interval_ms=20), MemoryBus(broker)):
        row, tokens = pack([0, 0]), pack(skewed())
        names = ("executed_tokens", "executed_experts", "cost_total", "cost_max", "cost_best")
        rows: dict[str, Any] = dict.fromkeys(names, row)
        counters = PhaseLoad(steps=9, tokens=tokens, active_steps=tokens, executed_steps=0, **rows)
        said = Load(
            source=Source(producer="e0", boot="b", seq=1),
            at=0.0,
            group="g",
            model_digest="m",
            rank=0,
            ranks=2,
            generation=1,
            epoch=0,
            instalment=0,
            phases={"decode": counters},
        )
        await others.bus.publish(subjects.load("g", "e0"), encode(said))
        assert (await others.event("proposed")).generation == 1


async def test_after_a_changed_domain_it_is_balanced_again() -> None:
    async with planning(MemoryBroker()) as others:
        await others.load(skewed(0))
        first = (await others.event("proposed")).epoch
        await others.engines("committed", first)
        for _ in range(20):
            await others.load(skewed(4), epoch=first, instalment=1)
        second = await others.event("proposed")
        assert second.epoch > first
        assert second.forecast is not None
        assert second.forecast.balance_next > second.forecast.balance_now


async def test_a_refused_placement_is_rolled_back_with_the_reason() -> None:
    async with planning(MemoryBroker()) as others:
        await others.load(skewed())
        event = await others.event("proposed")
        await others.engines("refused", event.epoch, reason="rank 1 cannot stage")
        back = await others.event("rolled_back")
        epoch, placement = await others.stored()
        assert (back.epoch, placement.layers) == (epoch, in_order(2, 8, 2))
        assert "rank 1 cannot stage" in back.reason


async def test_a_placement_without_progress_is_rolled_back() -> None:
    async with planning(MemoryBroker(), msgspec.structs.replace(CONFIG, timeout_s=0.05)) as others:
        await others.load(skewed())
        await others.event("proposed")
        assert "no progress" in (await others.event("rolled_back")).reason


async def test_a_restarted_planner_still_knows_the_load_and_its_history() -> None:
    broker = MemoryBroker()
    async with planning(broker) as others:
        await others.load(skewed())
        first = (await others.event("proposed")).epoch
        await others.engines("committed", first)
        await others.load(skewed(), epoch=first, instalment=1)
        await others.until(lambda shown: shown["epoch"] == first)
        await others.ask("pause")
    async with planning(broker) as others:
        group = (await others.ask("status"))["groups"]["g"]
        assert group["tokens_per_expert"] > 100
        assert (group["settled"], group["epoch"], group["paused"]) == ([0, first], first, True)


async def test_nonsense_on_the_bus_is_survived() -> None:
    broker = MemoryBroker()
    async with planning(broker) as others:
        for subject in (subjects.imbalance("g"), subjects.placement("g", "committed")):
            for data in (b"", b"null", b"[" * 99, b'{"type":"imbalance.v1"}', b"\xff"):
                await others.bus.publish(subject, data)
        for bucket in (subjects.GROUPS, subjects.PLACEMENTS):
            await (await others.bus.bucket(bucket)).put("x", b"nonsense")
        await others.form(msgspec.structs.replace(record(), layers=10**9))
        await others.load(skewed(layers=3))
        await others.load(skewed())
        await others.event("proposed")
        assert (await others.ask("status"))["bad"] >= 11


async def test_a_group_with_a_strange_name_is_planned_too() -> None:
    async with planning(MemoryBroker(), group=msgspec.structs.replace(record(), group="a/b c.d")) as others:
        assert list((await others.ask("status"))["groups"]) == ["a/b c.d"]


async def test_planning_goes_on_after_the_bus_was_away() -> None:
    broker = MemoryBroker()
    async with planning(broker) as others:
        broker.down()
        await others.load(skewed())
        broker.up()
        await others.load(skewed())
        await others.event("proposed")


async def test_an_unknown_policy_is_one_clear_error() -> None:
    with pytest.raises(Fatal, match=r"no policy 'best', there are eplb, omni, static"):
        async with open_service(PlannerConfig(policy="best"), MemoryBus()):
            pass


async def test_the_static_policy_never_proposes() -> None:
    async with planning(MemoryBroker(), msgspec.structs.replace(CONFIG, policy="static")) as others:
        await others.load(skewed())
        await others.until(lambda shown: shown["tokens_per_expert"] > 0)
        answer = await others.ask("plan")
        assert (answer["proposed"], others.events.empty()) == (False, True)


async def test_the_desk_refuses_what_it_cannot_do() -> None:
    async with planning(MemoryBroker()) as others:
        for order, code in (({"group": "h"}, 404), ({"gruop": "g"}, 400), ({"epoch": "x"}, 400)):
            with pytest.raises(ServiceError) as caught:
                await others.ask("plan", **order)
            assert caught.value.code == code
        for endpoint in ("plan", "dry_run", "roll_back"):
            with pytest.raises(ServiceError) as caught:
                await others.ask(endpoint)
            assert caught.value.code == 409
