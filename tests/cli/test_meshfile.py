"""Finding a running mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.cli import meshfile
from moesaic.cli.meshfile import MeshFile

MESH = MeshFile(nats="nats://a:1", api="http://a:2", monitor="http://a:3", model="m", pids={"gateway": 7})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / meshfile.DEFAULT_STATE
    folder.mkdir()
    return folder


def test_a_mesh_is_found_from_its_folder_and_from_those_below(state: Path) -> None:
    meshfile.write(state, MESH)
    (state.parent / "a" / "b").mkdir(parents=True)
    assert meshfile.find(state.parent) == meshfile.find(state.parent / "a" / "b") == MESH


def test_a_mesh_that_is_down_is_not_found(state: Path) -> None:
    meshfile.write(state, MESH)
    meshfile.remove(state)
    assert meshfile.find(state.parent) is None


def test_a_file_that_is_no_mesh_file_is_no_mesh(state: Path) -> None:
    (state / meshfile.NAME).write_text("{}")
    assert meshfile.find(state.parent) is None


def test_what_is_given_wins_over_the_environment_and_that_over_the_file(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshfile.write(state, MESH)
    monkeypatch.chdir(state.parent)
    assert meshfile.nats_url("given", {"MOESAIC_NATS": "env"}) == "given"
    assert meshfile.nats_url(None, {"MOESAIC_NATS": "env"}) == "env"
    assert meshfile.nats_url(None, {}) == MESH.nats
