"""`rlcluster scale`: statistics by hand, refused input, failures and Ctrl-C with stand-ins, and one real run."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from rlcluster.cli import main
from rlcluster.experiments import scaling
from rlcluster.experiments.scaling_output import table_text, write_plots
from rlcluster.experiments.scaling_statistics import (
    QUANTITIES,
    T_QUANTILES,
    Estimate,
    Medians,
    RunRow,
    estimate_mean,
    karp_flatt,
    medians,
    paired_ratios,
    summarise,
    t_quantile,
)
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores

from conftest import CARTPOLE, flags, rlcluster

# Statistics


def row(world_size: int, repeat: int, fps: float | None, scaling_name: str = "strong") -> RunRow:
    times = (None if fps is None else 1 / fps for _ in range(4))
    return RunRow(scaling_name, world_size, repeat, 8, "failed" if fps is None else "finished", 100, fps, *times)


def test_the_serial_fraction_is_that_of_karp_and_flatt():
    assert karp_flatt(1.6, 2) == pytest.approx((0.625 - 0.5) / 0.5)  # 0.25
    assert karp_flatt(2.0, 4) == pytest.approx(1 / 3)
    assert karp_flatt(4.0, 4) == 0.0
    assert karp_flatt(0.8, 2) == pytest.approx(1.5)  # slower than one rank
    assert karp_flatt(1.0, 1) is None


def test_the_serial_fraction_inverts_amdahls_law():
    for serial in (0.0, 0.1, 0.5, 1.0):
        for world_size in (2, 3, 16):
            assert karp_flatt(1 / (serial + (1 - serial) / world_size), world_size) == pytest.approx(serial)


def test_the_interval_of_a_mean_uses_students_t():
    # mean 12, s = sqrt(2.5), t(4) = 2.776: margin 2.776 * sqrt(2.5 / 5) = 2.776 * 0.707107
    five = estimate_mean([10.0, 11.0, 12.0, 13.0, 14.0])
    assert five == pytest.approx((12.0, 12.0 - 1.96293, 12.0 + 1.96293, True), abs=1e-5)
    assert estimate_mean([10.0, 12.0, 11.0, 15.0]) == (12.0, 10.0, 15.0, False)  # too few: lowest and highest
    assert estimate_mean([5.0]) == Estimate(5.0, None, None)
    assert estimate_mean([]) is None


def test_the_t_quantiles_fall_towards_that_of_the_normal_distribution():
    assert (t_quantile(1), t_quantile(10), t_quantile(30), t_quantile(31)) == (12.706, 2.228, 2.042, 1.96)
    assert list(T_QUANTILES) == sorted(T_QUANTILES, reverse=True)
    assert len(T_QUANTILES) == 30


def test_the_medians_exclude_the_warm_up():
    records = [{"update": k, **dict.fromkeys(QUANTITIES, float(k))} for k in (1, 2, 3, 4, 10)]
    assert medians(records, 2) == Medians(*([4.0] * 5))
    assert medians(records, 10) == Medians()


def test_a_repeat_is_compared_with_the_same_repeat_of_the_baseline():
    assert paired_ratios({1: 150.0, 2: 400.0, 4: 1.0}, {1: 100.0, 2: 200.0, 3: 400.0}) == [1.5, 2.0]


def test_speed_up_and_efficiency_are_means_over_paired_repeats():
    rows = [row(1, 1, 100), row(1, 2, 200), row(2, 1, 150), row(2, 2, 400), row(1, 3, 300), row(2, 3, None)]
    first, second = summarise(rows, ranks_that_fit=1)
    assert first.estimates["speedup"] == Estimate(1.0, 1.0, 1.0)
    assert second.estimates["speedup"] == (1.75, 1.5, 2.0, False)
    assert second.estimates["efficiency"] == (0.875, 0.75, 1.0, False)
    assert second.flat()["speedup_is_interval"] is False
    assert second.serial_fraction == pytest.approx((1 / 1.75 - 0.5) / 0.5)
    assert (first.is_beyond_cores, second.is_beyond_cores) == (False, True)
    assert (first.finished_repeats, second.finished_repeats) == (3, 2)


def test_few_repeats_are_shown_by_their_range_and_enough_by_an_interval():
    few = [row(1, repeat, fps) for repeat, fps in enumerate((90.0, 100.0, 110.0), 1)]
    settings = load_settings("ppo", "parallel", flags={"env.name": "CartPole-v1"})
    text = table_text(summarise(few, 4), few, settings, 4)
    assert "100 (90 to 110)" in text
    assert "±" not in text
    assert "In parentheses the lowest and the highest repeat: an interval takes at least 5 repeats." in text
    many = [*few, row(1, 4, 100.0), row(1, 5, 100.0)]
    text = table_text(summarise(many, 4), many, settings, 4)
    assert "100 ± 9" in text  # s = sqrt(50), t(4) = 2.776: 2.776 * sqrt(50 / 5) = 8.78
    assert "In parentheses" not in text


def test_no_error_bar_reaches_below_zero(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    monkeypatch.setattr("rlcluster.reports.drawing._save", lambda figure, paths: drawn.append(figure))
    rows = [
        row(1, repeat, fps) for repeat, fps in enumerate((1.0, 1.0, 1.0, 1.0, 200.0), 1)
    ]  # the interval begins at -70
    write_plots(tmp_path, summarise(rows, 4), load_settings("ppo", "parallel", flags={"env.name": "CartPole-v1"}), 4)
    (bars,) = drawn[0].axes[0].containers[0].lines[2]
    assert bars.get_segments()[0].min() == 0.0


def test_the_picture_of_ten_cases_names_each_group_once_and_says_budget_and_cores(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    monkeypatch.setattr("rlcluster.reports.drawing._save", lambda figure, paths: drawn.append(figure))
    monkeypatch.setattr(cores, "observe", lambda: Cores(4, tuple(Core(k, k) for k in range(4))))
    rows = [
        row(ranks, 1, 100.0 * ranks)._replace(scaling=scaling, t_iter=1.0, t_rollout=0.5)
        for scaling in ("strong", "weak")
        for ranks in (1, 2, 4, 8, 16)
    ]
    flags = {"env.name": "CartPole-v1", "training.total_updates": "20", "hardware.num_threads": "1"}
    write_plots(tmp_path, summarise(rows, 4), load_settings("ppo", "parallel", flags=flags), 4)
    (figure,) = drawn
    title = "Scaling of PPO_Parallel · CartPole-v1\n20 updates · 1 repeat · seed 42 · 1 thread per rank · 4 cores"
    assert figure.get_suptitle() == title
    figure.draw_without_rendering()
    labels = [text for is_minor in (False, True) for text in figure.axes[3].get_xticklabels(minor=is_minor)]
    assert [text.get_text().strip() for text in labels] == [*("1", "2", "4", "8", "16") * 2, "strong", "weak"]
    for which in (labels[:10], labels[10:]):
        boxes = [text.get_window_extent() for text in which]
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_a_baseline_of_several_ranks_has_efficiency_but_no_serial_fraction():
    first, second = summarise([row(4, 1, 300), row(2, 1, 200)], ranks_that_fit=4)
    assert (first.world_size, second.world_size) == (2, 4)
    assert first.estimates["efficiency"] == Estimate(1.0)
    assert second.estimates["speedup"] == Estimate(1.5)
    assert second.estimates["efficiency"] == Estimate(0.75)  # (300 / 4) / (200 / 2)
    assert first.serial_fraction is second.serial_fraction is None


def test_without_a_baseline_there_is_no_speed_up():
    first, second = summarise([row(1, 1, None), row(2, 1, 200)], ranks_that_fit=4)
    assert first.estimates["fps"] is None
    assert second.estimates["fps"] == Estimate(200.0)
    assert second.estimates["speedup"] is second.estimates["efficiency"] is second.serial_fraction is None
    assert first.flat()["fps_low"] is None


def test_each_kind_of_scaling_has_its_own_baseline():
    rows = [row(1, 1, 100), row(2, 1, 150), row(1, 1, 50, "weak"), row(2, 1, 100, "weak")]
    speedups = [(line.scaling, line.estimates["speedup"]) for line in summarise(rows, 2)]
    assert speedups[1::2] == [("strong", Estimate(1.5)), ("weak", Estimate(2.0))]


# Input that is refused before the first run


SMALL = {**CARTPOLE, "--total-iters": 3, "--warmup-iters": 1}


def scale(folder: Path, *more: str, **options: Any) -> int:
    """The command in this process, on CartPole."""
    given = {**SMALL, **{f"--{name.replace('_', '-')}": value for name, value in options.items()}}
    return main(["scale", "ppo", "--output-dir", str(folder), *flags(given), *more])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_sizes": "1,0"}, "argument --world-sizes: 0 should be at least 1"),
        ({"world_sizes": "1,two"}, "argument --world-sizes: two should be a whole number"),
        ({"world_sizes": "1,8"}, "--world-sizes 8: strong scaling partitions env.num_envs=4 environments"),
        ({"repeats": 0}, "argument --repeats: 0 should be at least 1"),
        ({"gamma": 2}, "training.gamma=2: input should be less than or equal to 1"),
        ({"warmup_iters": 3}, "--warmup-iters 3: a run with world size 1 has only 3 updates"),
        (
            {"total_timesteps": 128, "total_iters": "null"},
            "--warmup-iters 1: a run with world size 1 has only 1 update,",
        ),
        ({"env": "CartPoll-v1"}, "CartPoll-v1"),
        ({"num_workers": 2}, "parallel.num_workers=2: --world-sizes sets the number of ranks; leave it out"),
        ({"num_envs_per_worker": 2}, "parallel.num_envs_per_worker=2: with --scaling weak, --num-envs is per rank"),
        ({"log_dir": "logs"}, "output.log_dir=logs: each run keeps its log"),
        ({"world_sizes": "1,2", "scaling": "weak", "batch_size": 4}, "training.batch_size=4 does not"),
    ],
)
def test_impossible_requests_are_refused_in_one_line(
    options: dict[str, Any], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        exit_code = scale(tmp_path / "new", **options)
    except SystemExit as exit_request:
        exit_code = int(exit_request.code or 0)
    out, err = capfd.readouterr()
    assert exit_code == 2
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "new").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file"):
        assert scale(folder, world_sizes=1) == 2
        assert f"output.output_dir={folder} exists; choose another --output-dir" in capfd.readouterr().err


# The plan


def request(**changes: Any) -> scaling.ScaleRequest:
    names = {"env.name": "--env", "env.num_envs": "--num-envs", "training.n_steps": "--n-steps"}
    keys = ("parallel.num_workers", "parallel.num_envs_per_worker", "output.checkpoint_dir", "output.log_dir")
    others = {key: "--" + key.split(".")[1] for key in (*keys, "hardware.num_threads", "training.n_minibatches")}
    plain = scaling.ScaleRequest(
        algorithm=None,
        config=None,
        flags={"env.name": "CartPole-v1", "env.num_envs": "4", "training.n_steps": "1024"},
        flag_names={**names, **others, "training.total_updates": "--total-updates"},
        world_sizes=(4, 1),
        scalings=("strong", "weak"),
        repeats=3,
        warmup_iters=5,
        output_dir=Path("nowhere"),
    )
    return plain._replace(**changes)


def test_strong_scaling_fixes_the_total_environments_and_weak_scaling_those_per_rank() -> None:
    cases = scaling.plan_cases(request())
    assert [(case.scaling, case.world_size) for case in cases] == [
        ("strong", 1),
        ("strong", 4),
        ("weak", 1),
        ("weak", 4),
    ]
    assert [case.settings.env.num_envs for case in cases] == [4, 4, 4, 16]
    assert [case.settings.given_processes for case in cases] == [1, 4, 1, 4]
    assert {case.settings.num_minibatches for case in cases} == {
        4
    }  # the same number of gradient synchronisations per update
    assert {case.settings.training.total_updates for case in cases} == {30}
    assert {case.settings.hardware.num_threads for case in cases} == {1}
    assert cases[3].arguments[:4] == ["train", "ppo", "--mode", "parallel"]
    assert {"--num-envs=16", "--num_workers=4", "--num_threads=1"} <= set(cases[3].arguments)


def test_a_config_file_sets_threads_but_neither_ranks_nor_budget(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "mode: sequential\ntraining: {duration: 9h}\nhardware: {num_threads: 2}\n"
        "parallel: {num_workers: 3, num_envs_per_worker: 5}\noutput: {log_dir: shared}\n"
    )
    settings = scaling.plan_cases(request(config=str(file), scalings=("strong",)))[1].settings
    assert (settings.mode, settings.given_processes, settings.env.num_envs) == ("parallel", 4, 4)
    assert (settings.training.total_updates, settings.training.duration) == (30, None)
    assert (settings.hardware.num_threads, settings.output.log_dir) == (2, None)


def test_repeats_are_interleaved_and_every_second_one_is_reversed() -> None:
    order = scaling.schedule(scaling.plan_cases(request(scalings=("strong",))), 3)
    assert [(case.world_size, repeat) for case, repeat in order] == [(1, 1), (4, 1), (4, 2), (1, 2), (1, 3), (4, 3)]


# Failures and Ctrl-C, with a small script instead of the training

STAND_IN = """
import json, os, pathlib, signal, sys
run, updates, world_size, ending = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if ending == "interrupt":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
(run / "logs" / "PPO_Parallel").mkdir(parents=True)
with (run / "logs" / "PPO_Parallel" / "metrics.jsonl").open("w") as file:
    for k in range(1, updates + 1):
        times = {"fps": 100.0 * world_size, "t_iter": 0.4, "t_rollout": 0.1, "t_learn": 0.2, "t_sync": 0.1}
        file.write(json.dumps({"update": k, "steps_global": 128 * k, **times}) + "\\n")
if ending == "fail":
    sys.exit("warning: first\\nrlcluster: error: rank 1 failed: \\nTraceback\\nValueError: no luck")
if ending == "interrupt":
    os.kill(os.getppid(), signal.SIGINT)
    signal.sigwait([signal.SIGINT])
    (run / "saved").touch()
    sys.exit(130)
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """stand_in({2: "fail"}): training with 2 ranks fails, the other runs succeed."""

    def replace(endings: dict[int, str], updates: int = 3) -> None:
        def command(case: scaling.Case, run: Path) -> list[str]:
            ending = endings.get(case.world_size, "succeed")
            return [sys.executable, "-c", STAND_IN, str(run), str(updates), str(case.world_size), ending]

        monkeypatch.setattr(scaling, "training_command", command)

    return replace


def read_rows(folder: Path) -> list[tuple[int, int, str]]:
    rows = json.loads((folder / "per_run.json").read_text())
    return [(row["world_size"], row["repeat"], row["state"]) for row in rows]


def test_a_failed_run_is_shown_and_recorded_and_the_others_continue(
    stand_in: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in({2: "fail"})
    assert scale(tmp_path / "new", world_sizes="1,2,4", repeats=2) == 1
    out = capfd.readouterr().out
    assert "run 2 of 6: 2 ranks, repeat 1 ... failed: rank 1 failed: ValueError: no luck, ETA 0:00:" in out
    assert "run 3 of 6: 4 ranks, repeat 1 ... 400 steps/s, ETA" in out
    assert "2 of 6 runs did not finish; per_run.csv says why." in out
    assert read_rows(tmp_path / "new") == [
        *((1, 1, "finished"), (2, 1, "failed"), (4, 1, "finished")),
        *((4, 2, "finished"), (2, 2, "failed"), (1, 2, "finished")),
    ]
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())["rows"]
    assert [line["speedup"] for line in summary] == [1.0, None, 4.0]
    assert "Traceback" in (tmp_path / "new" / "logs" / "strong_workers_2_repeat_1.stderr").read_text()


def test_a_run_without_updates_after_the_warm_up_fails(
    stand_in: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in({}, updates=1)
    assert scale(tmp_path / "new", world_sizes=1, repeats=1) == 1
    assert "failed: no update is left after the warm-up" in capfd.readouterr().out


def test_ctrl_c_stops_the_run_and_writes_the_results_so_far(
    stand_in: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in({2: "interrupt"})
    assert scale(tmp_path / "new", world_sizes="1,2,4", repeats=2) == 128 + signal.SIGINT
    assert "run 2 of 6: 2 ranks, repeat 1 ... stopped: by a signal" in capfd.readouterr().out
    assert read_rows(tmp_path / "new") == [(1, 1, "finished"), (2, 1, "stopped")]
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())["rows"]
    assert [line["fps"] for line in summary] == [100.0, None]
    assert (tmp_path / "new" / "plots.png").exists()
    assert (tmp_path / "new" / "runs" / "strong_workers_2_repeat_1" / "saved").exists()


def test_oversubscribed_world_sizes_are_marked(
    stand_in: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in({})
    monkeypatch.setattr(cores, "observe", lambda: Cores(2, (Core(0, 0), Core(1, 1))))
    assert scale(tmp_path / "new", world_sizes="2,4", repeats=2, scaling="both") == 0
    out = capfd.readouterr().out
    assert len(re.findall(r"^ +\* 4 +400  ", out, re.MULTILINE)) == 2  # an interval without width is not shown
    assert len(re.findall(r"^ +2 +200  ", out, re.MULTILINE)) == 2
    assert "* oversubscribed: this machine has physical cores for 2 ranks" in out
    assert "The baseline is 2 ranks: speed-ups are relative to it, and there is no serial fraction." in out
    assert "strong scaling: ppo on CartPole-v1, 4 environments in total" in out
    assert "weak scaling: ppo on CartPole-v1, 4 environments per rank" in out


# A real measurement


@pytest.mark.slow
def test_scaling_is_measured_with_real_runs(tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    options = {**SMALL, "--n-minibatches": 2, "--world-sizes": "1,2", "--repeats": 1}
    result = rlcluster("scale", "ppo", "--output-dir", folder, *flags(options))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "run 2 of 2: 2 ranks, repeat 1 ... " in result.stdout
    assert "strong scaling: ppo on CartPole-v1, 4 environments in total" in result.stdout
    assert "±" not in result.stdout  # one repeat has no interval

    with (folder / "per_run.csv").open() as file:
        lines = list(csv.DictReader(file))
    runs = json.loads((folder / "per_run.json").read_text())
    assert [(line["world_size"], line["state"], line["steps"]) for line in lines] == [
        ("1", "finished", "384"),
        ("2", "finished", "384"),
    ]
    for run in runs:
        log = folder / "logs" / f"strong_workers_{run['world_size']}_repeat_1.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        assert {record["world_size"] for record in records} == {run["world_size"]}
        assert run["fps"] == pytest.approx((records[1]["fps"] + records[2]["fps"]) / 2)  # updates 2 and 3

    summary = json.loads((folder / "summary.json").read_text())
    speedup = runs[1]["fps"] / runs[0]["fps"]
    assert [line["speedup"] for line in summary["rows"]] == pytest.approx([1.0, speedup])
    assert summary["rows"][1]["efficiency"] == pytest.approx(speedup / 2)
    assert summary["rows"][1]["serial_fraction"] == pytest.approx((1 / speedup - 0.5) / 0.5)
    assert summary["rows"][1]["speedup_low"] is None
    assert summary["machine"]["cores_allowed"] == cores.allowed()
    assert summary["settings"]["training"]["total_updates"] == 3
    with (folder / "summary.csv").open() as file:
        assert math.isclose(float(list(csv.DictReader(file))[1]["speedup"]), speedup)
    assert (folder / "plots.png").read_bytes().startswith(b"\x89PNG")
