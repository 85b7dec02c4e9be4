from __future__ import annotations

import numpy as np
import pytest

from moesaic.planner.measured import FEW, Finding, Trial, Window


def trial(*before: Window) -> Trial:
    made = Trial(worse=0.15, windows=6)
    for window in before:
        assert made.add(window) is None
    made.begin(1)
    return made


def found(made: Trial, *after: Window) -> Finding | None:
    for window in after:
        finding = made.add(window)
        if finding is not None:
            return finding
    return None


STEADY = [Window(100.0, 10.0)] * 8


@pytest.mark.parametrize(("ms", "slower"), [(8.0, False), (11.0, False), (12.0, True)])
def test_steps_are_compared_with_those_before(ms: float, slower: bool) -> None:
    finding = found(trial(*STEADY), *[Window(100.0, ms)] * 6)
    assert finding is not None
    assert (finding.epoch, finding.slower) == (1, slower)
    assert finding.ratio == pytest.approx(ms / 10)


def test_more_tokens_in_a_step_excuse_more_time() -> None:
    before = [Window(float(tokens), 2.0 + 0.1 * tokens) for tokens in range(50, 150, 10)]
    finding = found(trial(*before), *[Window(180.0, 20.0)] * 6)
    assert finding is not None
    assert (round(finding.ratio, 3), finding.slower) == (1.0, False)


def test_a_few_slow_windows_are_no_reason() -> None:
    after = [Window(100.0, ms) for ms in (30.0, 30.0, 10.0, 10.0, 10.0, 10.0)]
    finding = found(trial(*STEADY), *after)
    assert finding is not None
    assert not finding.slower


def test_steps_of_quite_another_size_are_not_compared() -> None:
    assert found(trial(*STEADY), *[Window(1000.0, 99.0)] * 40) is None


def test_without_windows_before_there_is_no_finding_and_the_trial_ends() -> None:
    made = trial(*STEADY[: FEW - 1])
    assert found(made, *[Window(100.0, 99.0)] * 40) is None
    assert made.epoch is None


def test_windows_without_steps_do_not_count() -> None:
    made = trial(*STEADY)
    assert found(made, *[Window(0.0, 0.0)] * 40) is None
    assert made.epoch == 1


def test_a_placement_after_one_that_could_not_be_tried_is_compared_with_it() -> None:
    made = trial()
    assert found(made, *STEADY) is None
    made.begin(2)
    assert found(made, *[Window(100.0, 20.0)] * 6) is not None


def test_what_was_measured_on_trial_is_what_the_next_one_is_compared_with() -> None:
    made = trial(*STEADY)
    found(made, *[Window(100.0, 8.0)] * 6)
    made.begin(2)
    finding = found(made, *[Window(100.0, 10.0)] * 6)
    assert finding is not None
    assert finding.slower


def test_a_new_generation_measures_anew() -> None:
    made = trial(*STEADY)
    made.stop()
    made.begin(2)
    assert found(made, *[Window(100.0, 99.0)] * 40) is None


def test_noise_alone_hardly_ever_takes_a_placement_back() -> None:
    draw = np.random.default_rng(0)

    def noisy(count: int) -> list[Window]:
        return [Window(100.0, float(ms)) for ms in 10 * draw.lognormal(0, 0.15, count)]

    findings = [found(trial(*noisy(16)), *noisy(6)) for _ in range(500)]
    assert sum(f is not None and f.slower for f in findings) < 30
