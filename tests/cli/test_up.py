"""`moesaic up` for real: it comes up, mends what dies, ends in time, and says in one line what is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import orjson
import psutil
import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models" / "moesaic-tiny"
PATIENCE_S = 60.0

pytestmark = pytest.mark.mesh


class Up:
    """A running `moesaic up`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.out = folder / "up.out"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moesaic.cli", "up", "--model", str(TINY), "--port", "0", *arguments],
                stdout=out, stderr=out, cwd=folder, start_new_session=True,
            )  # fmt: skip

    def until(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert self.process.poll() is None, self.out.read_text()
            assert time.monotonic() < end, self.out.read_text()
            time.sleep(0.05)
        return found

    def mesh(self) -> dict[str, Any]:
        file = self.folder / ".moesaic" / "mesh.json"
        return dict(orjson.loads(file.read_bytes())) if file.exists() else {}

    def complete(self) -> str:
        client = openai.OpenAI(base_url=f"{self.mesh()['api']}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        with client:
            messages: Any = [{"role": "user", "content": "def fib(n):"}]
            answer = client.chat.completions.create(
                model="moesaic-tiny", messages=messages, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
            )
        return answer.choices[0].message.content or ""

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "moesaic.cli", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    running.until(running.mesh)
    yield running
    running.end()


def _children(up: Up) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(up.process.pid).children(recursive=True)
    return children


def test_it_serves_shows_itself_and_ends_within_five_seconds_on_ctrl_c(up: Up) -> None:
    assert up.complete()
    status = up.command("status", "--json")
    assert status.returncode == 0, status.stderr
    report = orjson.loads(status.stdout)
    assert (report["bus"], report["down"]) == ("up", [])
    (group,) = report["groups"].values()
    assert {engine["state"] for engine in group["engines"]} == {"serving"}
    text = up.command("status").stdout
    assert "moesaic-tiny-0" in text
    assert "generation" in text
    children = _children(up)
    assert len(children) == 6
    began = time.monotonic()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(5) == 0
    assert time.monotonic() - began < 5  # what the user is promised
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert not up.mesh()


@pytest.mark.parametrize("name", ["engine-1", "gateway", "monitor", "planner", "nats"])
def test_whatever_dies_is_started_again_and_the_mesh_serves_on(up: Up, name: str) -> None:
    before = up.complete()
    pid = up.mesh()["pids"][name]
    os.kill(pid, signal.SIGKILL)
    up.until(lambda: up.mesh()["pids"].get(name) not in {None, pid})

    def serves() -> bool:
        try:
            return up.complete() == before
        except openai.OpenAIError:
            return False

    up.until(serves)
    assert f"{name} died (SIGKILL" in up.out.read_text()


def test_load_statistics_and_placement_survive_a_restart_of_everything(up: Up) -> None:
    def told(running: Up) -> tuple[dict[str, Any], dict[str, Any]]:
        """The group as its engines see it, and as the planner does."""
        report = orjson.loads(running.command("status", "--json").stdout)
        planner = (report["planner"] or {}).get("groups", {})
        return report["groups"].get("moesaic-tiny", {}), planner.get("moesaic-tiny", {})

    def loaded() -> Any:
        up.command("load", "--domains", "zh", "--rate", "8", "--seconds", "3")
        return (group := told(up)[0]).get("epoch") and group

    placed = up.until(loaded)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(10) == 0
    again = Up(up.folder)
    try:
        again.until(again.mesh)
        group, planner = again.until(lambda: all(now := told(again)) and now)
        assert group["generation"] > placed["generation"]
        assert group["epoch"] >= placed["epoch"]
        assert planner["tokens_per_expert"] > 0
    finally:
        again.end()


def test_the_children_die_with_a_killed_supervisor(up: Up) -> None:
    children = _children(up)
    up.process.kill()
    up.process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_load_drives_changing_domains_and_tells_what_came_of_it(up: Up) -> None:
    done = up.command("load", "--domains", "zh,math", "--rate", "6", "--seconds", "3", "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    summary = orjson.loads(done.stdout)
    assert summary["failed"] == 0
    assert set(summary["domains"]) == {"zh", "math"}
    assert summary["ttft_ms"]["p50"] > 0


def test_a_second_one_on_the_same_state_is_refused_and_another_folder_is_fine(up: Up, tmp_path_factory: Any) -> None:
    again = up.command("up", "--model", str(TINY))
    assert again.returncode == 1
    assert "is running" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    other = Up(tmp_path_factory.mktemp("other"), "--engines", "1")
    try:
        other.until(other.mesh)
        assert other.complete() == up.complete()
    finally:
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(10) == 0


def _refused(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "moesaic.cli", "up", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1, done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} is taken" in _refused(tmp_path, "--model", str(TINY), "--port", port)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("--port", "70000", "no port 70000"),
        ("--engines", "0", "at least 1"),
        ("--nats", "somewhere", "not the URL of a NATS server: 'somewhere'"),
        ("--engine-arg", '--x "', "No closing quotation"),
    ],
)
def test_a_setting_that_cannot_be_is_told(tmp_path: Path, setting: str, value: str, reason: str) -> None:
    assert reason in _refused(tmp_path, "--model", str(TINY), setting, value)


def test_a_missing_or_empty_model_folder_is_told_before_anything_starts(tmp_path: Path) -> None:
    assert "no model at" in _refused(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no config.json" in _refused(tmp_path, "--model", "empty")


def test_a_state_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in _refused(tmp_path, "--model", str(TINY), "--state", "file/below")


def test_a_broken_checkpoint_ends_it_with_the_engines_reason(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "m", ignore=shutil.ignore_patterns("recipe"))
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    text = _refused(tmp_path, "--model", "m", "--port", "0")
    assert "truncated" in text
    assert "engine-" in text


def test_a_setting_that_no_engine_knows_ends_it_with_its_name(tmp_path: Path) -> None:
    text = _refused(tmp_path, "--model", str(TINY), "--port", "0", "--engine-arg", "--no-such-thing 1")
    assert "no-such-thing" in text


def test_status_and_load_without_a_mesh_say_so(tmp_path: Path) -> None:
    for command in ("status", "load"):
        done = subprocess.run(
            [sys.executable, "-m", "moesaic.cli", command], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={k: v for k, v in os.environ.items() if k != "MOESAIC_NATS"},
        )  # fmt: skip
        assert done.returncode == 1
        assert "no mesh here" in done.stderr


def test_status_says_that_the_bus_is_down(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moesaic.cli", "status", "--nats", "nats://127.0.0.1:9"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is down" in done.stdout
