"""Random requests, cancels, placements good and bad, pauses and killed ranks: every finished request has its own tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest
from msgspec.structs import replace

from engine.placements import placement, shuffled
from engine.prompts import PROMPTS, ids
from engine.ranks import Ranks

MOST_OPEN = 12
LONGEST = 60


@dataclass(frozen=True)
class Job:
    """What was asked of which rank."""

    rank: int
    prompt: int
    length: int
    temperature: float
    seed: int

    def submit(self, ranks: Ranks, rank: int, name: str, length: int) -> None:
        ranks.submit(
            rank, name, ids(PROMPTS[self.prompt]), max_tokens=length, ignore_eos=True,
            temperature=self.temperature, seed=self.seed,
        )  # fmt: skip


class Chaos:
    """One random course of events, the same for the same seed (but for timing)."""

    def __init__(self, ranks: Ranks, seed: int) -> None:
        self.ranks = ranks
        self.draw = random.Random(seed)
        self.group = ranks.form()
        self.jobs: dict[str, Job] = {}
        self.dropped: set[str] = set()
        self.epoch = 0
        self.commits = 0

    def open(self) -> list[str]:
        return [n for n in self.jobs if n not in self.ranks.ended and n not in self.dropped]

    def step(self) -> None:
        acts = (self.submit, self.submit, self.cancel, self.place, self.place_badly, self.rest)
        self.draw.choices(acts, weights=(6, 6, 2, 4, 1, 4))[0]()

    def submit(self) -> None:
        if len(self.open()) >= MOST_OPEN:
            self.ranks.pump(0.2)
            return
        temperature, seed = self.draw.choice(((0.0, 0), (0.9, 1), (0.9, 2)))
        rank, prompt = self.draw.randrange(len(self.ranks.ranks)), self.draw.randrange(len(PROMPTS))
        name = f"j{len(self.jobs)}"
        self.jobs[name] = Job(rank, prompt, self.draw.randint(1, LONGEST), temperature, seed)
        self.jobs[name].submit(self.ranks, rank, name, self.jobs[name].length)

    def cancel(self) -> None:
        if self.open():
            name = self.draw.choice(self.open())
            self.dropped.add(name)
            self.ranks.ranks[self.jobs[name].rank].tell("cancel", name)

    def place(self) -> None:
        """Told to the ranks in any order, with time between; often left to be replaced before it is live."""
        self.epoch += self.draw.randint(1, 3)
        target = placement(self.group, shuffled(self.group, self.draw.randrange(99), extra=self.draw.randrange(3)))
        for rank in self.draw.sample(self.ranks.ranks, len(self.ranks.ranks)):
            rank.tell("offer", self.epoch, target)
            self.ranks.pump(0.01)
        if self.draw.random() < 0.3:
            self.ranks.until(partial(self.ranks.switched, self.epoch), "the switch")

    def place_badly(self) -> None:
        self.epoch += 1
        good = placement(self.group, shuffled(self.group, 1))
        self.ranks.offer(self.epoch, replace(good, layers=good.layers[:-1]))

    def rest(self) -> None:
        self.ranks.pump(self.draw.random() / 2)

    def kill(self) -> None:
        """A rank's requests die with it; the survivors' go on in the next generation."""
        victim = self.draw.randrange(1, len(self.ranks.ranks))
        self.commits += len(self.ranks.reports("committed"))
        self.ranks.heard.clear()
        self.ranks.kill(victim)
        self.dropped |= {n for n in self.open() if self.jobs[n].rank == victim}
        self.ranks.until(partial(self._lost_at, 0), "the loss")
        self.ranks.restart(victim)
        start = placement(self.group, shuffled(self.group, self.draw.randrange(99)))
        self.group = self.ranks.form(self.group.generation + 1, self.epoch, start)

    def _lost_at(self, rank: int) -> bool:
        return any((r, kind) == (rank, "lost") for r, kind, _ in self.ranks.heard)


@pytest.mark.parametrize("n", [2, 3])
def test_whatever_happens_every_finished_request_has_its_own_tokens(n: int) -> None:
    with Ranks(
        n, mode="exact", spare_slots=3, kv_tokens=320, block_size=4, step_tokens=16, stage_kb_per_step=800
    ) as ranks:
        chaos = Chaos(ranks, seed=n)
        for _ in range(3):
            for _ in range(60):
                chaos.step()
            chaos.kill()
        ranks.finish(*chaos.open())
        last = placement(chaos.group, shuffled(chaos.group, 7))
        ranks.offer(chaos.epoch + 1, last)
        ranks.until(partial(ranks.switched, chaos.epoch + 1), "a last switch")
        for rank in range(n):
            status = ranks.ask(rank, "status")
            assert (status.running, status.waiting, status.kv_blocks_used) == (0, 0, 0)
        finished = {name: job for name, job in chaos.jobs.items() if name not in chaos.dropped}
        got = {name: ranks.tokens[name] for name in finished}
    assert chaos.commits > 3
    assert len(finished) > 20
    kinds = {(job.prompt, job.temperature, job.seed): job for job in finished.values()}
    with Ranks(1, mode="exact") as alone:
        alone.form()
        for kind, job in kinds.items():
            job.submit(alone, 0, str(kind), LONGEST)
        alone.finish(*map(str, kinds))
        for name, job in finished.items():
            assert got[name] == alone.tokens[str((job.prompt, job.temperature, job.seed))][: job.length], name
