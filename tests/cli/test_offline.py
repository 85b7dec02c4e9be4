"""`moesaic plan` and `moesaic replay` on small files as people have them, their numbers beside the library's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from moesaic.cli import replay
from moesaic.cli.__main__ import main
from moesaic.planner.cost import Cost
from moesaic.planner.formats import read_placement, write_placement
from moesaic.planner.layout import hold_of, state_of
from moesaic.planner.policy import Problem, named
from moesaic.planner.predict import drawn, even, outlook, shared_out
from moesaic.planner.topology import Topology, sources
from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import Prices
from moesaic.shared.messages import encode
from moesaic.shared.placement import State, in_order, layer_of
from planner.samples import window

LAYERS, EXPERTS, RANKS, STEPS = 3, 12, 4, 50
LIVE = in_order(LAYERS, EXPERTS, RANKS)
PNG = b"\x89PNG\r\n\x1a\n"


def counts(windows: int = 4) -> Ints:
    """Tokens `[W, L, E]`: skewed, and a little different in every window."""
    draw = np.random.default_rng(7)
    expected = STEPS * 40 * 0.7 ** np.arange(EXPERTS) * draw.uniform(0.8, 1.25, (windows, LAYERS, EXPERTS))
    return draw.poisson(expected).astype(np.int64)


def npz(folder: Path, load: Ints) -> Path:
    path = folder / "load.npz"
    np.savez(path, load=load, steps=np.full(len(load), STEPS))
    return path


def npy(folder: Path, load: Ints) -> Path:
    path = folder / "load.npy"
    np.save(path, load)
    return path


def sglang(folder: Path, load: Ints) -> Path:
    path = folder / "counts.json"
    path.write_bytes(orjson.dumps({"logical_count": load.tolist()}))
    return path


def messages(folder: Path, load: Ints) -> Path:
    path = folder / "windows.ndjson"
    path.write_bytes(b"\n".join(encode(window(tokens, seq)) for seq, tokens in enumerate(load)))
    return path


def dumps(folder: Path, load: Ints, live: State = LIVE) -> Path:
    path = folder / "dumps"
    path.mkdir()
    for step, tokens in enumerate(load):
        for rank in range(RANKS):
            lines = ["\t".join(str(tokens[i, e]) for e in layer.experts[rank]) for i, layer in enumerate(live)]
            (path / f"activation_counts_recordstep_{step}_rank_{rank}.txt").write_text("\n".join(lines))
    return path


@pytest.fixture
def load(tmp_path: Path) -> Path:
    return npz(tmp_path, counts())


def moesaic(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def answered(capsys: pytest.CaptureFixture[str], *args: object, status: int = 0) -> dict[str, Any]:
    """What a command says as JSON; its policies by name."""
    code, out, err = moesaic(capsys, *args, "--json")
    assert (code, err) == (status, "")
    said: dict[str, Any] = orjson.loads(out)
    return said | {"policies": {row["policy"]: row for row in said["policies"]}}


def problem(tokens: Ints, steps: int, slots: int) -> Problem:
    hold = hold_of(LIVE, EXPERTS)
    return Problem(tokens / steps, hold, np.full(RANKS, slots), Cost.tokens(RANKS))


def test_a_plan_has_the_numbers_of_the_library(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4, "--policy", "omni,eplb")
    total = counts().sum(axis=0)
    asked = problem(total, 4 * STEPS, 4 * LAYERS)
    steps = drawn(asked.load, 8, seed=0)
    for name in ("omni", "eplb"):
        row, hold = said["policies"][name], named(name)(asked)
        shares, prices = shared_out(asked.load, hold, asked.cost), Prices.tokens(RANKS)
        expected = outlook(steps, hold, asked.cost, shares, prices)
        assert row["step"]["dispatch"]["balance"] == expected.balance
        assert row["step"]["dispatch"]["cost"] == expected.cost
        assert row["step"]["even"]["balance"] == even(steps, hold, asked.cost).balance
        assert row["window"]["even"]["worst"] == even(total[None], hold, asked.cost).worst
        assert row["window"]["dispatch"]["balance"] == outlook(total[None], hold, asked.cost, shares, prices).balance
        assert row["moves"] == np.count_nonzero(hold & ~asked.live)
        assert row["moves_per_layer"] == row["moves"] / LAYERS
        assert row["planning_ms"] > 0


def test_what_is_live_is_the_first_row(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4)
    assert list(said["policies"]) == ["live", "omni"]
    live = said["policies"]["live"]
    assert (live["moves"], live["planning_ms"], live["bytes"]) == (0, None, None)
    assert live["window"]["even"]["balance"] < said["policies"]["omni"]["window"]["even"]["balance"]


def test_the_json_output_says_what_was_planned_for(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 3.5, "--windows", "1:3")
    assert {key: value for key, value in said.items() if key != "policies"} == {
        "load": str(load),
        "windows": [1, 3],
        "windows_with_tokens": 2,
        "steps": 2 * STEPS,
        "layers": LAYERS,
        "experts": EXPERTS,
        "ranks": RANKS,
        "slots": [10] * RANKS,
        "cost_unit": "tokens",
        "scored_steps": 8,
    }


@pytest.mark.parametrize("write", [npy, sglang, messages, dumps])
def test_every_format_of_load_gives_the_same_plan(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = answered(capsys, "plan", "--load", npz(tmp_path, counts()), "--ranks", RANKS, "--extra", 3)
    said = answered(capsys, "plan", "--load", write(tmp_path, counts()), "--ranks", RANKS, "--extra", 3)
    assert said["slots"] == [12] * RANKS
    assert said["policies"]["omni"]["window"] == plain["policies"]["omni"]["window"]


def test_dumps_are_read_by_the_live_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = tuple(layer_of(layer.experts[::-1]) for layer in LIVE)
    write_placement(tmp_path / "live.npy", live)
    folder = dumps(tmp_path, counts(), live)
    said = answered(capsys, "plan", "--load", folder, "--live", tmp_path / "live.npy", "--slots", 4)
    total = counts().sum(axis=0)
    expected = even(total[None], hold_of(live, EXPERTS), Cost.tokens(RANKS))
    assert said["policies"]["live"]["window"]["even"]["balance"] == expected.balance


@pytest.mark.parametrize("form", ["moesaic", "omni", "ascend", "sglang", "phy2log"])
def test_what_is_written_can_be_live(form: str, load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / {"omni": "new.npy", "phy2log": "new.npz"}.get(form, "new.json")
    first = answered(
        capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4,
        "--out", out, "--out-format", form, "--pad",
    )  # fmt: skip
    again = answered(capsys, "plan", "--load", load, "--live", out, "--ranks", RANKS, "--policy", "static")
    assert again["policies"]["live"]["window"]["even"] == first["policies"]["omni"]["window"]["even"]
    assert again["slots"] == [4 * LAYERS] * RANKS


def test_our_own_format_keeps_the_shares(load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answered(capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4, "--out", tmp_path / "new.json")
    asked = problem(counts().sum(axis=0), 4 * STEPS, 4 * LAYERS)
    hold = named("omni")(asked)
    assert read_placement(tmp_path / "new.json") == state_of(hold, shared_out(asked.load, hold, asked.cost))


def test_few_moves_stay_few_and_who_cannot_is_named(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("plan", "--load", load, "--ranks", RANKS, "--slots", 4, "--max-moves", 2, "--policy", "omni,eplb")
    assert answered(capsys, *args)["policies"]["omni"]["moves"] <= 2
    assert "eplb moved more than --max-moves" in moesaic(capsys, *args)[1]


def test_costs_nodes_and_bytes_reach_the_policy_and_the_row(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(
        capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4, "--nodes", 2, "--groups", 4,
        "--groups-per-token", 2, "--top-k", 4, "--token-ms", 0.5, "--expert-ms", 2, "--fixed-ms", 1,
        "--speeds", "1,1,1,0.5", "--slot-bytes", 10,
    )  # fmt: skip
    row = said["policies"]["omni"]
    assert (said["cost_unit"], row["bytes"]) == ("ms", 10 * row["moves"])
    assert 0 <= row["moves_across_nodes"] <= row["moves"]
    cost = Cost(np.array([1, 1, 1, 0.5]), token=0.5, expert=2.0, fixed=1.0, unit="ms")
    asked = problem(counts().sum(axis=0), 4 * STEPS, 4 * LAYERS)
    expected = even(drawn(asked.load, 8, seed=0), asked.live, cost)
    assert said["policies"]["live"]["step"]["even"]["cost"] == expected.cost


def test_the_table_has_a_line_per_policy(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = moesaic(
        capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4, "--policy", "omni,eplb", "--slot-bytes", 2**20
    )  # fmt: skip
    lines = out.splitlines()
    assert code == 0
    assert "windows 0:4, 200 steps, 3 layers, 12 experts; 4 ranks of 12 slots (4.00 per layer)" in lines[0]
    assert [line.split()[:2] for line in lines[2:5]] == [["live", "dispatch"], ["omni", "dispatch"], ["eplb", "even"]]
    assert ("MiB" in lines[1], "across nodes" in lines[1]) == (True, False)


def test_unknown_steps_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npy(tmp_path, counts())
    assert "does not tell its steps" in moesaic(capsys, "plan", "--load", path, "--ranks", 4, "--slots", 4)[1]


def test_a_replay_scores_each_plan_on_the_window_after_it(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(capsys, "replay", "--load", load, "--ranks", RANKS, "--slots", 4)
    windows, prices, cost = counts(), Prices.tokens(RANKS), Cost.tokens(RANKS)
    assert list(said["policies"]) == ["omni", "eplb", "static"]
    for name, row in said["policies"].items():
        live, following, steps, moves = hold_of(LIVE, EXPERTS), [], [], []
        for t in range(3):
            asked = Problem(windows[t] / STEPS, live, np.full(RANKS, 12), cost)
            hold = named(name)(asked)
            shares = shared_out(asked.load, hold, cost)
            following.append(outlook(windows[t + 1][None], hold, cost, shares, prices).balance)
            steps.append(outlook(drawn(windows[t + 1] / STEPS, 8, seed=t), hold, cost, shares, prices).cost)
            moves.append(np.count_nonzero(hold & ~live))
            live = hold
        assert row["mean"]["dispatch"]["next"] == pytest.approx(np.mean(following))
        assert row["mean"]["dispatch"]["cost"] == pytest.approx(np.mean(steps))
        assert [plan["moves"] for plan in row["plans"]] == moves
        assert row["moves_per_layer"] == pytest.approx(np.mean(moves[1:]) / LAYERS)
        assert [plan["window"] for plan in row["plans"]] == [0, 1, 2]


def test_a_replay_counts_what_crosses_nodes(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = answered(
        capsys, "replay", "--load", load, "--ranks", RANKS, "--slots", 4, "--nodes", 2, "--policy", "eplb"
    )  # fmt: skip
    live, topology = hold_of(LIVE, EXPERTS), Topology(np.array([0, 0, 1, 1]))
    hold = named("eplb")(Problem(counts()[0] / STEPS, live, np.full(RANKS, 12), Cost.tokens(RANKS), topology=topology))
    assert said["policies"]["eplb"]["plans"][0]["moves_across_nodes"] == sources(live, hold, topology)[1].sum()


def test_the_table_of_a_replay(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = moesaic(capsys, "replay", "--load", load, "--ranks", RANKS, "--slots", 4, "--windows", "2:")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in lines[2:5]] == [["omni", "dispatch"], ["eplb", "even"], ["static", "dispatch"]]
    assert lines[2].split()[-2:] == ["-", "-"]  # a single plan has no later ones


def test_windows_without_a_token_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    windows = counts()
    windows[1] = 0
    args = ("replay", "--load", npz(tmp_path, windows), "--ranks", RANKS, "--slots", 4, "--policy", "static")
    assert [plan["window"] for plan in answered(capsys, *args)["policies"]["static"]["plans"]] == [0, 2]
    assert "only the 3 windows with tokens count" in moesaic(capsys, *args)[1]


def test_a_long_replay_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    progress = replay.Progress(3, lambda: next(clock))
    for number in range(3):
        progress.step(f"omni: window {number}")
    assert capsys.readouterr().err == "moesaic: omni: window 1, 2 of 3 plans\n"


def test_a_policy_without_an_answer_does_not_stop_the_others(load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "replay"):
        args = (command, "--load", load, "--ranks", 5, "--slots", 2.7, "--policy", "eplb,omni")
        policies = answered(capsys, *args, status=1)["policies"]
        assert "eplb needs 12 slots per layer, 5 ranks have 2 each" in policies["eplb"]["error"]
        assert "error" not in policies["omni"]
        code, out, _ = moesaic(capsys, *args)
        assert (code, "eplb failed: " in out, "\nomni" in out) == (1, True, True)


def test_nothing_is_written_for_a_policy_that_failed(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.json"
    args = ("--load", load, "--ranks", 5, "--slots", 2.7, "--policy", "eplb", "--out", out)
    assert moesaic(capsys, "plan", *args)[0] == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slots", "4"], "give --ranks R"),
        (["--ranks", "4"], "give --slots S"),
        (["--ranks", "0", "--slots", "4"], "--ranks 0: expected from 1 to"),
        (["--ranks", "99999999", "--slots", "4"], "--ranks 99999999: expected from 1 to"),
        (["--ranks", "4", "--slots", "2"], "load.npz on 4 ranks of 6 slots: 36 experts of 3 layers do not fit in 24"),
        (["--ranks", "4", "--slots", "0"], "--slots 0: expected above 0"),
        (["--ranks", "4", "--slots", "nan"], "--slots nan: expected above 0"),
        (["--ranks", "4", "--slots", "13"], "--slots 13: expected above 0, at most the 12 experts"),
        (["--ranks", "4", "--extra", "-1"], "--extra -1: expected at least 0"),
        (["--ranks", "4", "--slots", "4", "--max-moves", "-1"], "--max-moves -1: expected at least 0"),
        (["--ranks", "4", "--slots", "4", "--slot-bytes", "0"], "--slot-bytes 0: expected at least 1"),
        (["--ranks", "4", "--slots", "4", "--policy", "best"], "no policy 'best', there are eplb, omni, static"),
        (["--ranks", "4", "--slots", "4", "--policy", ","], "--policy names no policy"),
        (["--ranks", "4", "--slots", "4", "--windows", "2:5"], "--windows 2:5: there are the windows 0:4"),
        (["--ranks", "4", "--slots", "4", "--windows", "2:2"], "--windows 2:2: there are the windows 0:4"),
        (["--ranks", "4", "--slots", "4", "--windows", "two"], "--windows two: expected A:B"),
        (["--ranks", "4", "--slots", "4", "--nodes", "3"], "--nodes 3: 4 ranks do not make 3 nodes"),
        (["--ranks", "4", "--slots", "4", "--top-k", "2"], "--top-k go with --groups"),
        (["--ranks", "4", "--slots", "4", "--groups", "4"], "--groups G goes with --groups-per-token M and --nodes N"),
        (["--ranks", "4", "--slots", "4", "--speeds", "1,2"], "--speeds: expected 4 numbers above 0"),
        (["--ranks", "4", "--slots", "4", "--speeds", "1,a"], "--speeds: could not convert string to float: 'a'"),
        (["--ranks", "4", "--slots", "4", "--expert-ms", "1"], "go with --token-ms"),
        (["--ranks", "4", "--slots", "4", "--token-ms", "0"], "--token-ms, --expert-ms, --fixed-ms: a cost's parts"),
        (["--ranks", "4", "--slots", "4", "--live-format", "omni"], "--live-format goes with --live"),
        (["--ranks", "4", "--slots", "4", "--load-format", "csv"], "unknown load format 'csv', expected one of"),
        (["--ranks", "4", "--slots", "4", "--live", "none.npy"], "none.npy: cannot be read: No such file"),
        (["--ranks", "4", "--slots", "4", "--plot", __file__], "is not a folder"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    options: list[str], said: str, load: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "replay"):
        code, out, err = moesaic(capsys, command, "--load", load, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("moesaic: ")
        assert said in err


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["--groups", "5", "--groups-per-token", "1"], "--groups 5: 12 experts do not make 5 groups"),
        (["--groups", "4", "--groups-per-token", "5"], "--groups-per-token 5: expected from 1 to 4"),
        (["--groups", "4", "--groups-per-token", "2", "--top-k", "13"], "--top-k 13: expected from 1 to 12"),
    ],
)
def test_groups_must_fit(nodes: list[str], said: str, load: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--load", load, "--ranks", 4, "--slots", 4, "--nodes", 2)
    code, _, err = moesaic(capsys, "plan", *args, *nodes)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "omni,eplb", "--out", "new.json"], "--out takes the plan of one policy"),
        (["--out-format", "ascend"], "--out-format and --pad go with --out"),
        (["--out", "new.json", "--out-format", "csv"], "--out-format csv is unknown, expected one of moesaic, omni"),
        (["--out", "none/new.json"], "none/new.json: cannot be written: No such file or directory"),
        (["--slots", "3.4", "--out", "new.json", "--out-format", "ascend"], "or pass pad"),
    ],
)
def test_nothing_is_written_where_the_output_is_wrong(
    options: list[str], said: str, load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    placed = [str(tmp_path / word) if word.endswith(".json") else word for word in options]
    code, out, err = moesaic(capsys, "plan", "--load", load, "--ranks", RANKS, "--slots", 4, *placed)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert sorted(tmp_path.iterdir()) == before


def test_broken_files_are_named_with_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "windows.ndjson"
    broken.write_bytes(encode(window(counts()[0], 0)) + b'\n{"type":"imbalance.v1"}\n')
    code, _, err = moesaic(capsys, "plan", "--load", broken, "--ranks", RANKS, "--slots", 4)
    assert code == 2
    assert f"{broken}: line 2: expected an imbalance.v1 message" in err


def test_a_live_placement_must_be_of_the_load_and_the_ranks(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live.npy"
    write_placement(live, in_order(LAYERS, EXPERTS - 1, RANKS))
    _, _, err = moesaic(capsys, "plan", "--load", load, "--live", live)
    assert "load of 3 layers and 12 experts, the placement is of 3 and 11" in err
    _, _, err = moesaic(capsys, "plan", "--load", load, "--live", live, "--ranks", 2)
    assert "expected 2 ranks, found 4" in err


def test_nothing_can_be_learnt_without_tokens_or_from_one_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = npy(tmp_path, np.zeros((2, LAYERS, EXPERTS), dtype=np.int64))
    code, _, err = moesaic(capsys, "plan", "--load", idle, "--ranks", RANKS, "--slots", 4)
    assert (code, "the windows 0:2 are without a token" in err) == (2, True)
    one = npz(tmp_path, counts(1))
    code, _, err = moesaic(capsys, "replay", "--load", one, "--ranks", RANKS, "--slots", 4)
    assert (code, "a replay needs at least 2 windows with tokens, found 1" in err) == (2, True)


@pytest.mark.parametrize(
    ("command", "names"), [("plan", ["rank_load.png", "replicas.png"]), ("replay", ["balance.png", "replicas.png"])]
)
def test_pictures_are_png_files(
    command: str, names: list[str], load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures" / "new"
    args = ("--load", load, "--ranks", RANKS, "--slots", 4, "--policy", "omni,eplb", "--plot", folder)
    assert moesaic(capsys, command, *args)[0] == 0
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all(path.read_bytes().startswith(PNG) for path in folder.iterdir())


def test_without_any_answer_a_replay_draws_nothing(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pictures"
    args = ("--load", load, "--ranks", 5, "--slots", 2.7, "--policy", "eplb", "--plot", folder)
    code, out, _ = moesaic(capsys, "replay", *args)
    assert (code, "eplb failed: window 0: " in out, folder.exists()) == (1, True, False)


@pytest.mark.parametrize(("missing", "extra"), [("matplotlib", "plots"), ("numba", "planner")])
def test_a_missing_extra_is_named(missing: str, extra: str, load: Path, tmp_path: Path) -> None:
    child = f"import sys; sys.modules['{missing}'] = None; from moesaic.cli.__main__ import main; main(sys.argv[1:])"
    args = ["plan", "--load", str(load), "--ranks", "4", "--slots", "4", "--plot", str(tmp_path / "pictures")]
    ended = subprocess.run([sys.executable, "-c", child, *args], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"pip install 'moesaic[{extra}]'\n")


def test_a_policy_of_another_package_is_asked_and_its_bug_is_its_own(load: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def stay(problem):\n    return problem.live\ndef bug(problem):\n    return 1 / 0\n"
    )
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[moesaic.policies]\nstay = mine:stay\nbug = mine:bug\n")
    args = ["plan", "--load", str(load), "--ranks", "4", "--slots", "4", "--policy", "stay,bug", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "moesaic.cli", *args],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    live, stay, bug = orjson.loads(ended.stdout)["policies"]
    assert (ended.returncode, stay["moves"], stay["window"]) == (1, 0, live["window"])
    assert bug == {"policy": "bug", "error": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_help_shows_examples_and_formats(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = moesaic(capsys, command, "--help")
    assert code == 0
    assert all(words in out for words in (f"  moesaic {command} --load ", "OmniPlacement's .npy", "logical_count"))


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(load: Path) -> None:
    command = [sys.executable, "-m", "moesaic.cli", "plan", "--load", str(load), "--ranks", "4", "--slots", "5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, b"")
