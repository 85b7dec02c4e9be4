"""Children that die, and what is said of it. Small programs stand in for the services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from buses import until
from moesaic.cli.children import YOUNG_DEATHS, Child, Hopeless, last_words, rotate

SECONDS = 30
"""A bound for what should take one."""
UNLUCKY = "import sys; print('out of luck'); sys.exit({status})"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"

MakeChild = Callable[[str], Child]


@pytest.fixture
def told() -> asyncio.Queue[str]:
    return asyncio.Queue()


@pytest.fixture
def child(tmp_path: Path, told: asyncio.Queue[str]) -> MakeChild:
    def make(program: str) -> Child:
        return Child("x", [sys.executable, "-S", "-c", program], tmp_path / "x.log", told.put_nowait)

    return make


async def _run(child: Child, *, up: bool) -> None:
    async with asyncio.timeout(SECONDS):
        await child.run(lambda: up, lambda: None)


async def test_in_a_mesh_that_is_up_it_is_started_again_and_the_reason_told(
    child: MakeChild, told: asyncio.Queue[str]
) -> None:
    unlucky = child(UNLUCKY.format(status=2))
    running = asyncio.create_task(_run(unlucky, up=True))
    async with asyncio.timeout(SECONDS):
        lines = [await told.get() for _ in range(2)]
    await unlucky.stop(1.0)
    await running
    assert lines == ["x died (exit status 2: out of luck); starting it again"] * 2
    assert unlucky.starts >= 2


@pytest.mark.parametrize(("status", "starts"), [(1, YOUNG_DEATHS), (2, 1), (3, 1)])
async def test_while_the_mesh_starts_bad_settings_or_three_early_deaths_end_it(
    child: MakeChild, status: int, starts: int
) -> None:
    unlucky = child(UNLUCKY.format(status=status))
    with pytest.raises(Hopeless, match=r"^x: out of luck$"):
        await _run(unlucky, up=False)
    assert unlucky.starts == starts


async def test_one_that_does_not_listen_is_killed(child: MakeChild) -> None:
    deaf = child(DEAF)
    running = asyncio.create_task(_run(deaf, up=True))
    await until(lambda: deaf.log.exists() and deaf.log.read_text() != "")
    await deaf.stop(0.1)
    await running
    assert deaf.pid is None
    assert deaf.starts == 1


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ('{"event":"a","level":"info"}\n{"event":"cannot go on","level":"error","reason":"no disk"}\n', "no disk"),
        ('{"event":"boom","level":"error"}\n{"event":"bye","level":"info"}\n', "boom"),
        ("Traceback …\nValueError: x\n\n", "ValueError: x"),
        ("[1, 2]\n", "[1, 2]"),
        ("", "nothing in its log"),
    ],
)
def test_the_last_error_of_its_log_is_the_reason(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(log)
    assert last_words(tmp_path / "x.log") == reason


def test_without_a_log_there_is_no_reason(tmp_path: Path) -> None:
    assert last_words(tmp_path / "x.log") == "no log"


def test_a_log_begins_anew_and_the_one_before_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    rotate(log)
    log.write_text("before")
    rotate(log)
    assert not log.exists()
    assert (tmp_path / "x.log.1").read_text() == "before"
