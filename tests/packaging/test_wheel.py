"""The built wheel: everything is in it, and it is enough."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTIONS = {
    "shared": "shared",
    "gateway": "services/gateway",
    "engine": "services/engine",
    "monitor": "services/monitor",
    "planner": "services/planner",
    "cli": "cli",
}
IMPORTS = """
import importlib, sys
for name in ["shared.config", "gateway.config", "engine.config", "monitor.config", "planner.config", "cli.__main__"]:
    module = importlib.import_module(f"moesaic.{name}")
    assert module.__file__.startswith(sys.argv[1]), module.__file__
from moesaic.cli.prompts import domains, prompts
print(sum(len(prompts(domain)) for domain in domains()))
"""


def _run(*command: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("portion", PORTIONS)
def test_every_file_of_a_portion_is_in_the_wheel(wheel: Path, portion: str) -> None:
    source = ROOT / PORTIONS[portion] / "src"
    files = {
        f.relative_to(source).as_posix() for f in source.rglob("*") if f.is_file() and "__pycache__" not in f.parts
    }
    assert f"moesaic/{portion}/py.typed" in files
    assert files <= set(zipfile.ZipFile(wheel).namelist())


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    tops = {tuple(name.split("/")[:2]) for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top[0].endswith(".dist-info")} == {("moesaic", name) for name in PORTIONS}


def test_an_installed_wheel_is_enough_to_import_every_portion(wheel: Path, tmp_path: Path) -> None:
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel))
    # -S: without the .pth files of this environment, which lead to the sources
    path = os.pathsep.join((str(tmp_path), sysconfig.get_path("purelib")))
    assert int(_run("-S", "-c", IMPORTS, str(tmp_path), PYTHONPATH=path)) >= 6 * 12
