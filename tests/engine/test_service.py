"""The engine's rim on the in-memory bus, with the fake backend: what gateways, monitor and planner see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from engine.placements import placement, shuffled
from engine.ranks import TINY
from moesaic.engine import membership
from moesaic.engine.config import EngineConfig
from moesaic.engine.fake import FakeBackend, token_at
from moesaic.engine.service import EngineService, open_service
from moesaic.shared import subjects
from moesaic.shared.bus import Delivery
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import (
    Accepted,
    Cancel,
    EngineStatus,
    Frame,
    Frames,
    Generate,
    Group,
    Load,
    ModelCard,
    PlacementEvent,
    Refused,
    Replay,
    Sampling,
    decode,
    decode_either,
    encode,
)
from moesaic.shared.service import Fatal


class Mesh:
    """Engines on one broker, and everything they say."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.said: list[tuple[str, bytes]] = []
        self.news = asyncio.Event()

    async def listen(self) -> None:
        async def hear(delivery: Delivery) -> None:
            self.said.append((delivery.subject, delivery.data))
            self.news.set()

        for subject in (subjects.frames("*"), subjects.status(), subjects.load(), subjects.placement()):
            await self.bus.subscribe(subject, hear)

    @asynccontextmanager
    async def engine(self, number: int, ranks: int, **settings: Any) -> AsyncIterator[EngineService]:
        config = EngineConfig(
            model=str(TINY), engine=f"engine-{number}", ranks=ranks, backend="fake", status_interval_ms=50,
            load_interval_ms=50, **settings,
        )  # fmt: skip
        async with open_service(config, MemoryBus(self.broker), FakeBackend) as service:
            yield service

    def heard(self, kind: type[Any], subject: str) -> list[Any]:
        return [decode(data, kind) for at, data in self.said if at == subject]

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(10):
            while not (result := condition()):
                self.news.clear()
                await self.news.wait()
        return result

    async def serving(self, *numbers: int, generation: int = 1) -> None:
        def last(number: int) -> EngineStatus | None:
            heard = self.heard(EngineStatus, subjects.status(f"engine-{number}"))
            return heard[-1] if heard else None

        await self.until(lambda: all((s := last(n)) and s.generation >= generation for n in numbers))

    async def group(self) -> Group:
        entry = await (await self.bus.bucket(subjects.GROUPS)).get(subjects.token("moesaic-tiny"))
        assert entry is not None
        assert entry.value is not None
        return decode(entry.value, Group)

    async def generate(self, number: int, request: Generate) -> Accepted | Refused:
        answer = await self.bus.request(subjects.generate(f"engine-{number}"), encode(request))
        return decode_either(answer, Accepted, Refused)

    def frames(self, gateway: str = "g") -> list[Frame]:
        return [f for m in self.heard(Frames, subjects.frames(gateway)) for f in m.frames]


@pytest.fixture
async def mesh() -> Mesh:
    mesh = Mesh()
    await mesh.listen()
    return mesh


def _request(name: str = "r", **changes: Any) -> Generate:
    request = Generate(
        request=name, gateway="g", model="moesaic-tiny", tokens=(5, 6, 7), sampling=Sampling(max_tokens=6)
    )
    return replace(request, **changes)


async def test_engines_claim_ranks_and_form_a_group(mesh: Mesh) -> None:
    async with mesh.engine(0, 2), mesh.engine(1, 2):
        await mesh.serving(0, 1)
        group = await mesh.group()
        assert group.formed
        assert {m.engine for m in group.members} == {"engine-0", "engine-1"}


async def test_a_request_is_acknowledged_and_its_tokens_come_as_numbered_frames(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        assert isinstance(await mesh.generate(0, _request()), Accepted)
        await mesh.until(lambda: any(f.finish for f in mesh.frames()))
        tokens = [t for f in mesh.frames() for t in f.tokens]
        assert tokens == [token_at(_request(), i) for i in range(6)]
        numbers = [m.source.seq for m in mesh.heard(Frames, subjects.frames("g"))]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_the_same_request_asked_again_runs_once(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        for _ in range(3):
            assert isinstance(await mesh.generate(0, _request()), Accepted)
        await mesh.until(lambda: any(f.finish for f in mesh.frames()))
        assert [f.from_index for f in mesh.frames()] == list(range(6))


async def test_a_resumed_request_goes_on_from_its_offset(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        delivered = tuple(token_at(_request(), i) for i in range(4))
        await mesh.generate(0, _request(tokens=(5, 6, 7, *delivered), output_offset=4))
        await mesh.until(lambda: any(f.finish for f in mesh.frames()))
        assert [(f.from_index, f.tokens) for f in mesh.frames()] == [(i, (token_at(_request(), i),)) for i in (4, 5)]


async def test_frames_can_be_asked_for_again_until_the_request_is_cancelled(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        await mesh.generate(0, _request())
        await mesh.until(lambda: any(f.finish for f in mesh.frames()))
        ask = encode(Replay(request="r", from_index=2))
        again = decode_either(await mesh.bus.request(subjects.replay("engine-0"), ask), Frame, Refused)
        assert isinstance(again, Frame)
        assert (again.from_index, len(again.tokens), again.finish) == (2, 4, "length")
        await mesh.bus.publish(subjects.cancel("engine-0"), encode(Cancel(request="r")))
        gone = decode_either(await mesh.bus.request(subjects.replay("engine-0"), ask), Frame, Refused)
        assert isinstance(gone, Refused)
        assert gone.code == "unknown"


async def test_what_cannot_be_served_is_refused_with_a_code(mesh: Mesh) -> None:
    async with mesh.engine(0, 2):
        early = await mesh.generate(0, _request())
        assert isinstance(early, Refused)
        assert early.code == "not_ready"
        async with mesh.engine(1, 2):
            await mesh.serving(0, 1)
            wrong = await mesh.generate(0, _request(model="other"))
            assert isinstance(wrong, Refused)
            assert wrong.code == "wrong_model"
            long = await mesh.generate(0, _request(sampling=Sampling(max_tokens=5000)))
            assert isinstance(long, Refused)
            assert long.code == "too_long"
            answer = await mesh.bus.request(subjects.generate("engine-0"), b'{"type": "generate.v1"}')
            malformed = decode(answer, Refused)
            assert malformed.code == "invalid"


async def test_a_stored_placement_is_committed_and_told_by_rank_0_alone(mesh: Mesh) -> None:
    async with mesh.engine(0, 2), mesh.engine(1, 2):
        await mesh.serving(0, 1)
        group = await mesh.group()
        placements = await mesh.bus.bucket(subjects.PLACEMENTS)
        epoch = await placements.put(subjects.token(group.group), encode(placement(group, shuffled(group, 1))))
        subject = subjects.placement(group.group, "committed")
        await mesh.until(lambda: mesh.heard(PlacementEvent, subject))
        await mesh.until(
            lambda: all(
                any(load.epoch == epoch for load in mesh.heard(Load, subjects.load(group.group, f"engine-{n}")))
                for n in (0, 1)
            )
        )
        (event,) = mesh.heard(PlacementEvent, subject)
        assert (event.epoch, event.source.producer) == (epoch, group.members[0].engine)
        assert event.moves > 0


async def test_malformed_and_impossible_placements_are_refused_with_their_reason(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        group = await mesh.group()
        placements = await mesh.bus.bucket(subjects.PLACEMENTS)
        refused = subjects.placement(group.group, "refused")
        await placements.put(subjects.token(group.group), b"{nonsense")
        await mesh.until(lambda: mesh.heard(PlacementEvent, refused))
        bad = placement(group, shuffled(group, 1)[:2])
        await placements.put(subjects.token(group.group), encode(bad))
        await mesh.until(lambda: len(mesh.heard(PlacementEvent, refused)) == 2)
        reasons = [event.reason for event in mesh.heard(PlacementEvent, refused)]
        assert "malformed" in reasons[0]
        assert "2 layers" in reasons[1]
        assert isinstance(await mesh.generate(0, _request()), Accepted)


async def test_a_restarted_engine_takes_its_rank_back_and_starts_from_the_stored_placement(mesh: Mesh) -> None:
    async with mesh.engine(0, 2):
        async with mesh.engine(1, 2):
            await mesh.serving(0, 1)
            group = await mesh.group()
            placements = await mesh.bus.bucket(subjects.PLACEMENTS)
            epoch = await placements.put(subjects.token(group.group), encode(placement(group, shuffled(group, 1))))
            await mesh.until(lambda: mesh.heard(PlacementEvent, subjects.placement(group.group, "committed")))
        async with mesh.engine(1, 2):
            await mesh.serving(0, 1, generation=group.generation + 1)
            after = await mesh.group()
            assert [m.engine for m in after.members] == [m.engine for m in group.members]
            status: EngineStatus = mesh.heard(EngineStatus, subjects.status("engine-1"))[-1]
            assert status.epoch == epoch


async def test_a_group_that_does_not_come_back_fails_its_requests_with_an_error(mesh: Mesh) -> None:
    async with mesh.engine(0, 2, rejoin_timeout_s=1):
        async with mesh.engine(1, 2):
            await mesh.serving(0, 1)
            await mesh.generate(0, _request(sampling=Sampling(max_tokens=1900)))
            await mesh.until(mesh.frames)
        groups = await mesh.bus.bucket(subjects.GROUPS)
        await groups.put(subjects.token("moesaic-tiny"), encode(membership.renew(await mesh.group())))
        await mesh.until(lambda: any(f.error for f in mesh.frames()))
        (error,) = [f.error for f in mesh.frames() if f.error]
        assert error.code == "lost_group"


async def test_an_engine_whose_name_is_taken_by_another_ends(mesh: Mesh) -> None:
    async with mesh.engine(0, 1) as first:
        await mesh.serving(0)
        async with mesh.engine(0, 1):
            with pytest.raises(Fatal, match="engine-0"):
                async with asyncio.timeout(10):
                    await first.wait()


async def test_the_models_card_and_tokenizer_are_where_gateways_look(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        models = await mesh.bus.bucket(subjects.MODELS)

        async def card() -> ModelCard:
            async for entry in models.watch():
                assert entry.value is not None
                return decode(entry.value, ModelCard)
            raise AssertionError

        async with asyncio.timeout(5):
            found = await card()
        stored = await mesh.bus.get_file(subjects.FILES, found.files["tokenizer.json"])
        assert stored == (TINY / "tokenizer.json").read_bytes()


async def test_the_group_is_put_back_when_the_bus_has_lost_its_state(mesh: Mesh) -> None:
    async with mesh.engine(0, 1):
        await mesh.serving(0)
        before = await mesh.group()
        await (await mesh.bus.bucket(subjects.GROUPS)).delete(subjects.token(before.group))
        await mesh.serving(0, generation=before.generation + 1)
        assert (await mesh.group()).generation > before.generation


async def test_stopping_lets_running_requests_finish_for_a_while(mesh: Mesh) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(mesh.engine(0, 1, drain_s=5))
        await mesh.serving(0)
        await mesh.generate(0, _request(sampling=Sampling(max_tokens=30)))
    assert mesh.frames()[-1].finish == "length"
