"""Policies of other packages, found through the entry point; the example of the documentation is one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from moesaic.planner.cost import Cost
from moesaic.planner.policy import Problem, check, named, names

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, value: str) -> None:
    """A package with one policy `mine`, as an installer would leave it."""
    package = value.partition(":")[0]
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[moesaic.policies]\nmine = {value}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_the_documented_example_is_found_by_name_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    installed(tmp_path, monkeypatch, code, "documented_policy:mine")
    assert "mine" in names()
    live = np.zeros((1, 4, 2), dtype=np.bool_)
    live[0, [0, 1], 0] = live[0, [2, 3], 1] = True
    problem = Problem(np.array([[9.0, 1.0, 1.0, 1.0]]), live, np.array([3, 3]), Cost.tokens(2))
    hold = named("mine")(problem)
    check(problem, hold)
    assert hold[0, 0].tolist() == [True, True]


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("mine = 3\n", "no_function:mine", "cannot be called"),
        ("import missing_in_action\n", "broken_import:mine", "cannot be loaded: No module named 'missing_in_action'"),
        ("", "no_attribute:mine", "cannot be loaded"),
    ],
)
def test_a_broken_plugin_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, value: str, reason: str
) -> None:
    installed(tmp_path, monkeypatch, code, value)
    with pytest.raises(LookupError, match=re.escape(reason)):
        named("mine")
