"""What is said of a child that died."""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.cli.children import last_words


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
