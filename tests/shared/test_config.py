from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta

from moesaic.shared.config import Common, ConfigError, load


class Example(Common, frozen=True, kw_only=True):
    """An example service."""

    blocks: Annotated[int, Meta(description="how many, at least 1 % of all", ge=1)] = 64
    fast: Annotated[bool, Meta(description="hurry")] = False
    rate: Annotated[float, Meta(description="per second")] = 0.5
    model: Annotated[str, Meta(description="what to serve")]


def read(*argv: str, **env: str) -> Example:
    return load(Example, "MOESAIC_EXAMPLE", "moesaic-example", ["--model", "m", *argv], env)


def test_a_default_holds_where_nothing_is_said() -> None:
    assert read() == Example(model="m")


def test_the_command_line_wins_over_the_environment() -> None:
    settings = read("--blocks", "7", MOESAIC_EXAMPLE_BLOCKS="8", MOESAIC_EXAMPLE_RATE="2")
    assert (settings.blocks, settings.rate) == (7, 2.0)


def test_a_services_own_variable_wins_over_the_common_one() -> None:
    common = read(MOESAIC_NATS="nats://all:1", MOESAIC_LOG_LEVEL="debug", MOESAIC_EXAMPLE_LOG_LEVEL="error")
    assert (common.nats, common.log_level) == ("nats://all:1", "error")


def test_variables_of_others_are_not_looked_at() -> None:
    assert read(MOESAIC_OTHER_BLOCKS="x", PATH="y") == Example(model="m")


@pytest.mark.parametrize("text", ["true", "1"])
def test_truth_is_read_from_text(text: str) -> None:
    assert read("--fast", text).fast


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        read("--blocks", "0", "--rate", "quick", MOESAIC_EXAMPLE_BLOKS="1")
    for part in ("MOESAIC_EXAMPLE_BLOKS: no such setting", "blocks='0'", "rate='quick'"):
        assert part in str(refusal.value)


def test_a_required_setting_is_asked_for_by_its_flag() -> None:
    with pytest.raises(ConfigError, match="--model is required"):
        load(Example, "MOESAIC_EXAMPLE", "moesaic-example", [], {})


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="log_level='loud'"):
        read("--log-level", "loud")


def test_an_unknown_flag_ends_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--bloks", "1")
    assert "--bloks" in capsys.readouterr().err


def test_help_tells_each_setting_its_default_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "how many, at least 1 % of all (default 64; MOESAIC_EXAMPLE_BLOCKS)" in text
    assert "what to serve (required; MOESAIC_EXAMPLE_MODEL)" in text
