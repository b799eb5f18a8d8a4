"""`rlcluster compare` and `rlcluster plot`: table, fairness warnings, scores, bad input; runs are never modified."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from rlcluster.cli import main
from rlcluster.reports.comparison import Options, compare, run_names
from rlcluster.reports.comparison_text import report_text, score_lines, table_text
from rlcluster.reports.drawing import lift_from_frame, style
from rlcluster.reports.fairness import warnings_for
from rlcluster.reports.figures import draw_comparison
from rlcluster.reports.headline import headline
from rlcluster.reports.method_curves import Line, method_curve
from rlcluster.reports.methods import group_methods
from rlcluster.reports.page import page_text
from rlcluster.reports.score_table import csv_text, latex_text, markdown_text, score_table, score_tables
from rlcluster.reports.statistics import estimate, iqm
from rlcluster.runs.reader import read_run
from rlcluster.runs.status import RunState

from conftest import FAST_RECIPE, evaluation_of, publish_runs, write_run

REWARDS = [2.0, 3.0, 4.0, 5.0, 6.0, 6.5, 7.0, 7.5, 8.0, 9.0, 8.5, 8.0]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A sequential run, and a parallel one at twice its speed."""
    first = write_run(tmp_path / "sequential_1h", {}, REWARDS, fps=1000.0)
    second = write_run(tmp_path / "parallel_1h", {"mode": "parallel"}, REWARDS * 2, fps=2000.0)
    return first, second


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def compared(paths: list[Path], **options: object) -> object:
    return compare([read_run(path) for path in paths], **options)


# The table, the report and the files


def test_the_table_has_the_documented_layout(pair):
    text = table_text(compared(list(pair)), ["Sequential", "Parallel"])
    expected = """\
===================================================================================
TRAINING COMPARISON
===================================================================================
Metric                                   Sequential           Parallel
-----------------------------------------------------------------------------------
Duration (hours)                         0.0033               0.0033
Total Timesteps                          12,000               24,000
Total Updates                            12                   24

Performance Metrics
-----------------------------------------------------------------------------------
Average FPS                              1,000                2,000
Speedup (Parallel/Sequential)            -                    2.00x
Final FPS                                1,000                2,000

Reward Metrics
-----------------------------------------------------------------------------------
Initial Reward                           2.00                 2.00
Final Reward                             8.00                 8.00
Best Reward                              9.00                 9.00

Resource Usage
-----------------------------------------------------------------------------------
Cores                                    2                    2
Peak Memory (GB)                         1.50                 1.50

Efficiency Metrics
-----------------------------------------------------------------------------------
Timesteps/Hour                           3,600,000            7,200,000
Efficiency Gain (%)                      -                    100.0%
==================================================================================="""
    assert text == expected


def test_the_documented_flags_write_the_documented_files(pair, tmp_path, capsys):
    before = [contents(run) for run in pair]
    figure = tmp_path / "out" / "comparison.png"
    figure.parent.mkdir()
    code = main(["compare", "--sequential", str(pair[0]), "--parallel", str(pair[1]), "--output", str(figure)])
    assert code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    report = (figure.parent / "comparison_report.txt").read_text()
    assert "SEQUENTIAL VS PARALLEL TRAINING COMPARISON REPORT" in report
    assert f"Sequential Directory: {pair[0]}" in report
    assert "Speedup (FPS): 2.00x\nEfficiency Gain: 100.0%" in report
    assert "Speedup (Parallel/Sequential)" in capsys.readouterr().out
    assert [contents(run) for run in pair] == before


def test_any_number_of_runs_is_shown_in_blocks_relative_to_the_first(tmp_path):
    paths = [
        write_run(tmp_path / f"run_{k}", {"training.gamma": f"0.9{k}"}, REWARDS, fps=1000.0 * k) for k in range(1, 7)
    ]
    text = table_text(compared(paths), per_run=True)
    assert text.count("Metric ") == 2  # four runs, then two
    assert "run_1: " not in text  # short names head their columns
    assert "Speedup (vs. the first)                  5.00x                6.00x" in text


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    """Two methods of two seeds; the second is three times as fast."""
    return [
        write_run(
            tmp_path / f"{mode}_{seed}", {"mode": mode, "env.seed": str(seed)}, [*REWARDS, level + seed], fps * seed
        )
        for mode, level, fps in (("sequential", 5.0, 1000.0), ("parallel", 6.0, 3000.0))
        for seed in (1, 3)
    ]


def row(text: str, title: str) -> list[str]:
    """The cells of a row of the table: two spaces or more lie between them."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{title}  ")]
    return [cell.strip() for cell in line.removeprefix(title).split("  ") if cell.strip()]


def test_methods_are_the_columns_with_means_ranges_and_the_number_of_runs(seeds):
    text = table_text(compared(seeds))
    assert row(text, "Metric") == ["PPO_Sequential", "PPO_Parallel"]
    assert row(text, "Runs") == ["2", "2"]
    assert row(text, "Average FPS") == ["2,000 (1,000 to 3,000)", "6,000 (3,000 to 9,000)"]
    assert row(text, "Final Reward") == ["7.00 (6.00 to 8.00)", "8.00 (7.00 to 9.00)"]
    assert row(text, "Speedup (PPO_Parallel/PPO_Sequential)") == ["-", "3.00x"]  # between methods, not between seeds


def test_no_speed_up_is_shown_between_seeds_of_a_method(seeds):
    comparison = compared(seeds)
    text = table_text(comparison, per_run=True)
    assert row(text, "Speedup (vs. the first)") == ["-"] * 4  # nor versus one of them
    assert row(text, "Efficiency Gain (%)") == ["-"] * 4
    assert "Speedup" not in report_text(comparison, per_run=True)
    ratios = re.findall(r"<td>([^<]*)×</td>", page_text(comparison, "page", per_run=True))
    assert ratios == ["3.00"]  # of methods


def test_tables_of_single_runs_have_a_row_for_each_and_no_speed_up(seeds, two_games, tmp_path):
    out = tmp_path / "out"
    assert main(["compare", *map(str, seeds), "--per-run", "--format", "csv,md,tex", "--output", str(out)]) == 0
    rows = list(csv.DictReader(io.StringIO((out / "comparison.csv").read_text())))
    assert [one["run"] for one in rows] == ["sequential_1", "sequential_3", "parallel_1", "parallel_3"]
    assert [one["final reward"] for one in rows] == ["6.0", "8.0", "7.0", "9.0"]
    assert "speed-up" not in rows[0]
    markdown, latex = ((out / f"comparison.{suffix}").read_text() for suffix in ("md", "tex"))
    assert "| run | final reward | steps/s | minutes |\n|---|---:|---:|---:|\n| sequential_1 | 6.00 |" in markdown
    assert "Means over runs" not in markdown
    assert latex.count(r"\begin{tabular}{lrrr}") == 1
    headings = score_tables(compared(two_games), per_run=True)[0].headings
    assert headings[:3] == ["game", "run", "unseen levels"]


def test_text_columns_are_aligned_to_the_left(two_games):
    by_method, by_game = (latex_text([table]) for table in score_tables(compared(two_games)))
    assert r"\begin{tabular}{lrr" in by_method
    assert r"\begin{tabular}{llrrr}" in by_game  # game, method; runs, unseen levels, training levels
    assert "|---|---|---:|---:|---:|" in markdown_text(score_tables(compared(two_games)))


def test_scores_explain_intervals_where_there_are_some(seeds, tmp_path):
    few, enough = compared(seeds), [write_run(tmp_path / f"{k}", {"env.seed": str(k)}, [*REWARDS, k]) for k in range(5)]
    sentence = "In brackets: 95 % intervals, stratified bootstrap over runs."
    for comparison, is_said in ((few, False), (compared(enough), True)):
        assert (sentence in report_text(comparison)) is is_said
        assert (sentence in page_text(comparison, "page")) is is_said


def test_minutes_of_short_runs_have_the_digits_that_tell_them_apart(tmp_path):
    speeds = {"sequential": 2000.0, "parallel": 3000.0}
    short = compared([write_run(tmp_path / mode, {"mode": mode}, REWARDS, fps) for mode, fps in speeds.items()])
    assert [row[-1] for row in score_table(short).rows] == ["0.10", "0.07"]
    assert "<td>0.07</td>" in page_text(short, "page")
    long = compared(
        [write_run(tmp_path / f"long_{mode}", {"mode": mode}, REWARDS, fps / 200) for mode, fps in speeds.items()]
    )
    assert [row[-1] for row in score_table(long).rows] == ["20.0", "13.3"]


def test_games_without_levels_have_none_in_any_table(tmp_path):
    runs = [
        write_run(
            tmp_path / f"{seed}",
            {"env.name": "CartPole-v1", "env.seed": str(seed)},
            REWARDS,
            evaluation=evaluation_of(seed) | {"env": "CartPole-v1"},
        )
        for seed in (1, 2)
    ]
    comparison = compared(runs)
    (table,) = score_tables(comparison)
    assert "evaluation" in table.headings
    results = page_text(comparison, "page").split('id="results"')[1].split('id="curves"')[0]
    assert '<th scope="col">evaluation</th>' in results
    assert "Evaluation: 1.50 (1.00 to 2.00), 50 episodes each" in report_text(comparison)
    for text in (csv_text([table]), latex_text([table]), results, report_text(comparison)):
        assert "unseen" not in text.lower()


def test_a_caption_explains_the_notation_that_its_table_has_and_no_more(pair, seeds, tmp_path):
    (alone,), (few,) = (score_tables(compared(list(runs))) for runs in (pair, seeds))
    assert "parentheses" not in alone.caption
    assert "Means" not in alone.caption
    assert few.caption.endswith("Means over runs; in parentheses the lowest and the highest run.")
    many = [write_run(tmp_path / f"m{k}", {"env.seed": str(k)}, [*REWARDS, 5.0 + k % 2]) for k in range(5)]
    assert score_tables(compared(many))[0].caption.endswith("Means over runs; in brackets a 95 % interval.")
    assert table_text(compared(many)).endswith("Means over runs; in brackets a 95 % interval.")


def test_scores_name_runs_where_the_other_tables_do(pair):
    comparison = compared(list(pair))
    page, lines = page_text(comparison, "page"), score_lines(comparison)
    assert page.count('<th scope="row">sequential_1h</th>') == page.count('<th scope="row">parallel_1h</th>') >= 3
    assert '<th scope="row">PPO_Parallel</th>' not in page
    assert any(line.startswith("  parallel_1h (1 run, 1 game): IQM 0.600") for line in lines)


def test_the_facts_of_machines_have_readable_names(pair):
    page = page_text(compared(list(pair)), "page")
    for name in ("processor", "cores that the run may use", "commit of rlcluster"):
        assert f'<th scope="row">{name}</th>' in page
    for key in ("cpu_model", "cores_allowed", "git_commit"):
        assert key not in page


def test_five_runs_of_a_method_have_an_interval_instead_of_a_range(tmp_path):
    runs = [write_run(tmp_path / f"{k}", {"env.seed": str(k)}, [*REWARDS, 5.0 + k % 2]) for k in range(5)]
    (cell,) = row(table_text(compared(runs)), "Final Reward")
    assert cell == "5.40 [5.00, 5.80]"  # three runs of 5, two of 6: resampled means are multiples of 0.2


def test_a_failed_run_does_not_blur_the_means_of_its_method(seeds, tmp_path, capsys):
    failed = RunState("failed", 0, 2, "out of memory")._asdict()
    runs = [*seeds, write_run(tmp_path / "lost", {"env.seed": "9"}, [0.0, 0.0], state=failed)]
    comparison = compared(runs)
    text = table_text(comparison)
    assert row(text, "Runs") == ["2 of 3", "2"]
    assert row(text, "Final Reward")[0] == "7.00 (6.00 to 8.00)"
    assert comparison.failures == {"lost": "after 2 updates: out of memory"}
    assert not any("lost" in warning for warning in comparison.warnings)  # named once
    assert page_text(comparison, "page").count("out of memory") == 1
    assert comparison.scoring.left_out == ["lost"]
    for listed in (page_text(comparison, "page"), "\n".join(score_lines(comparison))):
        assert "Excluded" not in listed  # the failure is named with its reason


def test_single_runs_stay_reachable(seeds, tmp_path, capsys):
    assert main(["compare", *map(str, seeds), "--per-run", "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert row(out, "Metric") == ["sequential_1", "sequential_3", "parallel_1", "parallel_3"]
    assert "SEQUENTIAL_1 TRAINING" in (tmp_path / "out" / "comparison_report.txt").read_text()


def test_a_comparison_begins_with_two_sentences(seeds, tmp_path, capsys):
    assert main(["compare", *map(str, seeds), "--output", str(tmp_path / "out")]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == (
        "PPO_Sequential and PPO_Parallel were each trained in 2 runs of 25 M steps on coinrun, on 2 cores "
        "(seeds 1 and 3)."
    )
    assert second == (
        "Not enough runs to tell: PPO_Parallel has the highest IQM of the normalised mean reward of the last 100 "
        "training episodes (0.600), but an interval takes at least 5 runs of a method, and PPO_Sequential and "
        "PPO_Parallel have 2."
    )


def shown_text(comparison):
    """The words of the page, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", "", page_text(comparison, "page")).split())


def test_an_interval_is_in_brackets_wherever_it_is(pair, tmp_path):
    for run in pair:
        (run / "evaluation.json").write_text(json.dumps(evaluation_of(7.0, 8.0)))
    comparison = compared(list(pair))
    for text in (report_text(comparison), shown_text(comparison)):
        assert "7.00 [6.50, 7.50], 50 episodes" in text
        assert "(6.50 to 7.50)" not in text


def test_a_single_episode_is_one_episode_and_says_why_it_has_no_interval(pair):
    for run, episodes in zip(pair, (1, 30), strict=True):
        (run / "evaluation.json").write_text(json.dumps(evaluation_of(7.0, episodes=episodes)))
    comparison = compared(list(pair))
    for text in (report_text(comparison), shown_text(comparison)):
        assert "7.00, 1 episode (no interval below 20)" in text
        assert "7.00 [6.50, 7.50], 30 episodes" in text
        assert "sequential_1h: sampled actions, 1 episode; parallel_1h: sampled actions, 30 episodes" in text
    (pair[1] / "evaluation.json").write_text(json.dumps(evaluation_of(7.0, episodes=1)))
    assert compared(list(pair)).scoring.source.endswith(", 1 episode per run")


def test_the_report_of_one_method_begins_with_its_result_and_compares_nothing(seeds):
    comparison = compared(seeds[2:])
    assert headline(comparison)[1].startswith(
        "PPO_Parallel has an IQM of 0.600 in the normalised mean reward of the last 100 training episodes over 2 runs; "
    )
    assert "COMPARISON\n---" not in report_text(comparison)


def test_the_first_sentence_counts_finished_runs_and_names_the_others(seeds, tmp_path):
    def also(name: str, state: str, **flags: str) -> Path:
        return write_run(tmp_path / name, {**flags, "env.seed": "9"}, [1.0], state=RunState(state, 0, 1)._asdict())

    lost, stopped = also("lost", "failed"), also("held", "preempted", mode="parallel")
    trained = "PPO_Sequential and PPO_Parallel were each trained in 2 runs of 25 M steps on coinrun, on 2 cores"
    assert (
        headline(compared([*seeds, lost, stopped]))[0] == f"{trained} (seeds 1 and 3); lost failed; held was stopped."
    )
    others = [also(f"a2c_{k}", "preempted", algorithm="a2c", mode="parallel") for k in range(4)]
    assert headline(compared([*seeds, *others]))[0] == f"{trained} (seeds 1 and 3); 4 runs were stopped."
    assert headline(compared([*seeds[1:], lost]))[0].startswith(
        "PPO_Sequential and PPO_Parallel were each trained in 1 to 2 runs of 25 M steps"
    )
    assert headline(compared([lost, stopped]))[0] == (
        "No run of PPO_Sequential and PPO_Parallel of 25 M steps on coinrun, on 2 cores (seed 9) has finished; lost "
        "failed; held was stopped."
    )


# Curves of methods


def line(positions: list[float], values: list[float]) -> Line:
    unknown = np.full(len(values), np.nan)
    return Line(np.array(positions), np.array(values), unknown, unknown)


def test_the_curve_of_a_method_has_all_its_runs_at_common_positions():
    runs = [line([0.0, 10.0], [0.0, 10.0]), line([2.0, 6.0, 8.0], [4.0, 4.0, 6.0])]
    curve = method_curve({"game": runs})
    assert curve.positions.tolist() == [2.0, 5.0, 8.0]  # from where both have begun to where the first one ends
    assert curve.values.tolist() == [3.0, 4.5, 7.0]
    assert (curve.low.tolist(), curve.high.tolist()) == ([2.0, 4.0, 6.0], [4.0, 5.0, 8.0])
    assert (curve.band, curve.num_runs) == ("range", 2)


def test_from_five_runs_on_the_band_of_a_curve_is_an_interval_of_its_interquartile_mean():
    runs = [line([0.0, 1.0], [height, height + 1]) for height in (0.0, 1.0, 2.0, 3.0, 100.0)]
    curve = method_curve({"game": runs})
    assert curve.values.tolist() == [2.0, 3.0]  # the lowest and the highest run are trimmed
    assert curve.band == "interval"
    expected = estimate({"game": np.array([0.0, 1.0, 2.0, 3.0, 100.0])}, iqm)
    assert curve.low[0] == pytest.approx(expected.low, abs=0.4)
    assert curve.high[0] == pytest.approx(expected.high, abs=2)


def test_a_single_run_keeps_the_band_over_its_episodes():
    own = Line(np.array([1.0, 2.0]), np.array([5.0, 6.0]), np.array([4.0, 5.0]), np.array([6.0, 7.0]))
    assert method_curve({"game": [own]}) == (*own, "episodes", 1)


def test_runs_of_several_games_have_no_range():
    curve = method_curve({"a": [line([0.0, 1.0], [0.0, 1.0])], "b": [line([0.0, 1.0], [2.0, 3.0])]})
    assert curve.values.tolist() == [1.0, 2.0]
    assert curve.band == "none"
    assert np.isnan(curve.low).all()


# Formats and tables of scores


def test_figures_and_tables_are_written_in_every_format(seeds, tmp_path):
    out = tmp_path / "out"
    formats, panels = "png,pdf,svg,csv,md,tex", "main,diagnostics,seeds"
    assert main(["compare", *map(str, seeds), "--format", formats, "--panels", panels, "--output", str(out)]) == 0
    starts = {name: (out / f"comparison.{name}").read_bytes()[:5] for name in ("png", "pdf", "svg")}
    assert starts == {"png": b"\x89PNG\r", "pdf": b"%PDF-", "svg": b"<?xml"}
    first, second = csv.DictReader(io.StringIO((out / "comparison.csv").read_text()))
    assert (first["method"], first["speed-up"], second["method"], second["runs"]) == (
        *("PPO_Sequential", "", "PPO_Parallel", "2"),
    )
    assert float(second["speed-up"]) == pytest.approx(3.0)
    columns = ("final reward", "final reward, low", "final reward, high")
    assert [float(second[name]) for name in columns] == [8.0, 7.0, 9.0]
    assert second["low and high"] == "lowest and highest run"
    assert "| PPO_Parallel | 2 | 0.600 | 8.00 (7.00 to 9.00) |" in (out / "comparison.md").read_text()
    latex = (out / "comparison.tex").read_text()
    assert r"PPO\_Parallel & 2 & 0.600 & 8.00 (7.00 to 9.00)" in latex
    assert latex.count("&") == 3 * 5  # method, runs, IQM, final reward, steps/s, minutes


def test_several_games_have_a_row_for_each_method_and_game_in_every_table(tmp_path):
    lost = RunState("failed", 0, 1)._asdict()
    runs = [
        write_run(
            tmp_path / f"{mode}_{game}_{seed}",
            {"mode": mode, "env.name": game, "env.seed": str(seed)},
            [*REWARDS, level + seed],
            evaluation=evaluation_of(level + seed) | {"env": game},
        )
        for mode, game, level in (
            ("sequential", "coinrun", 5.0),
            ("sequential", "maze", 6.0),
            ("parallel", "maze", 7.0),
        )
        for seed in (1, 3)
    ]
    runs.append(
        write_run(tmp_path / "lost", {"mode": "parallel", "env.name": "maze", "env.seed": "4"}, [1.0], state=lost)
    )
    out = tmp_path / "out"
    assert main(["compare", *map(str, runs), "--format", "csv,md,tex", "--output", str(out)]) == 0
    by_game = [
        ("coinrun", "PPO_Sequential", "2", "7.00 (6.00 to 8.00)"),
        ("maze", "PPO_Sequential", "2", "8.00 (7.00 to 9.00)"),
        ("maze", "PPO_Parallel", "2 of 3", "9.00 (8.00 to 10.00)"),
    ]
    markdown, latex, page = ((out / f"comparison.{suffix}").read_text() for suffix in ("md", "tex", "html"))
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "| game | method | runs | unseen levels |" in markdown
    assert latex.count(r"\begin{tabular}") == 2
    for cells in by_game:
        assert f"| {' | '.join(cells)} |" in markdown
        assert " & ".join(cells).replace("_", r"\_") in latex
        assert f"{' '.join(cells)} " in shown
    rows = list(csv.DictReader(io.StringIO((out / "comparison.csv").read_text())))
    assert [(one["method"], one["game"], one["runs"], one["unseen levels"]) for one in rows] == [
        ("PPO_Sequential", "all", "4", ""),
        ("PPO_Parallel", "all", "2", ""),
        ("PPO_Sequential", "coinrun", "2", "7.0"),
        ("PPO_Sequential", "maze", "2", "8.0"),
        ("PPO_Parallel", "maze", "2", "9.0"),
    ]
    assert (rows[4]["unseen levels, low"], rows[4]["low and high"]) == ("8.0", "lowest and highest run")
    assert (rows[0]["IQM"] != "", rows[2]["IQM"]) == (True, "")


def test_a_figure_of_another_format_keeps_its_name(seeds, tmp_path):
    assert main(["compare", *map(str, seeds), "--output", str(tmp_path / "paper.pdf"), "--format", "pdf,tex"]) == 0
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "paper.tex").exists()
    assert not (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize(("flag", "value"), [("--format", "png,docx"), ("--panels", "main,all"), ("--format", "")])
def test_an_unknown_format_or_panel_is_refused_with_the_known_ones(flag, value, capsys):
    with pytest.raises(SystemExit) as left:
        main(["compare", flag, value])
    assert left.value.code == 2
    assert "should be one or more of" in capsys.readouterr().err


@pytest.fixture
def two_games(tmp_path: Path) -> list[Path]:
    """Two methods on coinrun (8 everywhere) and maze (2 everywhere), two seeds each."""
    return [
        write_run(
            tmp_path / f"{mode}_{game}_{seed}",
            {"mode": mode, "env.name": game, "env.seed": str(seed)},
            [level] * 20,
            evaluation=evaluation_of(level, level) | {"env": game},
        )
        for mode in ("sequential", "parallel")
        for game, level in (("coinrun", 8.0), ("maze", 2.0))
        for seed in (1, 2)
    ]


def test_raw_rewards_of_two_games_are_never_averaged(two_games, tmp_path, capsys):
    assert main(["compare", *map(str, two_games), "--output", str(tmp_path / "out")]) == 0
    out, report = capsys.readouterr().out, (tmp_path / "out" / "comparison_report.txt").read_text()
    levels = "Training Levels", "Unseen Levels (or new episodes)", "Generalisation Gap"
    for title in ("Initial Reward", "Final Reward", "Best Reward", *levels):
        assert row(out, title) == ["-", "-"]
    for text in (out, report):
        assert "  PPO_Parallel, coinrun: 8.00, 8.00, 8.00\n  PPO_Parallel, maze: 2.00, 2.00, 2.00\n" in text
        assert "  PPO_Parallel, maze: 2.00 by 2 of 2 runs after 10,000 steps" in text
        assert "5.00" not in text  # the mean of 8 and 2
        assert re.search(r"\ncoinrun +PPO_Parallel +2 +8\.00 +8\.00\nmaze +PPO_Sequential +2 +2\.00 +2\.00\n", text)
    for title in ("Final Reward", "Unseen Levels", "Training Levels", "Generalisation Gap"):
        assert title not in report
    assert "PPO_Parallel, maze</th>" in (tmp_path / "out" / "comparison.html").read_text()
    first, _ = json.loads((tmp_path / "out" / "comparison.json").read_text())["methods"]
    assert (first["final_reward"], first["unseen_levels"]) == (None, None)
    assert first["games"]["maze"] == {"final_reward": 2.0, "unseen_levels": 2.0}


def test_single_runs_of_two_games_keep_their_own_rewards(two_games):
    text = table_text(compared(two_games), per_run=True)
    assert "Rewards by game" not in text
    (first, second) = [line.split()[2:] for line in text.splitlines() if line.startswith("Final Reward")]
    assert [*first, *second] == ["8.00", "8.00", "2.00", "2.00"] * 2


def test_figures_of_the_same_runs_are_the_same_files(seeds, tmp_path):
    suffixes = (".png", ".pdf", ".svg")
    files = [[tmp_path / f"{name}{suffix}" for suffix in suffixes] for name in ("first", "second")]
    for paths in files:
        draw_comparison(compared(seeds), paths, ["main"])
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_pdf_has_fonts_that_publishers_accept(seeds, tmp_path):
    draw_comparison(compared(seeds), [tmp_path / "paper.pdf"], ["main"])
    assert b"/FontFile2" in (tmp_path / "paper.pdf").read_bytes()
    assert b"/Type3" not in (tmp_path / "paper.pdf").read_bytes()


def test_every_set_of_panels_that_the_flag_knows_can_be_drawn(seeds, tmp_path):
    for panels in ("main", "diagnostics", "core-hours", "seeds"):
        draw_comparison(compared(seeds), [tmp_path / f"{panels}.png"], [panels])
        assert (tmp_path / f"{panels}.png").exists()


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Figures, instead of being saved."""
    figures: list[Figure] = []
    monkeypatch.setattr("rlcluster.reports.drawing._save", lambda figure, paths: figures.append(figure))
    return figures


def test_curves_by_core_hours_can_be_drawn(cores, tmp_path, drawn):
    assert main(["compare", *map(str, cores), "--panels", "core-hours", "--output", str(tmp_path)]) == 0
    reward, timesteps = drawn[0].subfigs[0].axes
    assert (reward.get_title(), timesteps.get_title()) == (
        "Episode reward by core-hours",
        "Timesteps against core-hours",
    )
    assert reward.get_xlabel() == timesteps.get_xlabel() == "core-hours"
    ends = [line.get_xdata()[-1] * 3600 for line in timesteps.lines]
    assert ends == pytest.approx([12.0, 24.0])  # 12 seconds on 1 core and on 2


def test_the_legend_has_the_curves_of_all_panels(tmp_path, published, drawn):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 7.5})
    runs = [write_run(tmp_path / f"{k}", {**FAST_RECIPE, "env.seed": str(k)}, [7.0] * 800) for k in range(2)]
    comparison = compared(runs, options=Options(with_reference=True))
    draw_comparison(comparison, [], ["diagnostics", "main"])
    (legend,) = drawn[0].subfigs[0].legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["OpenAI's PPO", "PPO_Sequential (2 runs)", "ours: ppo_fast, 1 seed"]


def test_a_method_is_in_the_legend_once_where_its_single_runs_are_drawn_too(seeds, drawn):
    draw_comparison(compared(seeds), [], ["main", "seeds"])
    (legend,) = drawn[0].subfigs[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["PPO_Sequential (2 runs)", "PPO_Parallel (2 runs)"]


def test_published_curves_of_two_games_are_drawn_on_their_own_panels(tmp_path, published, drawn):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 7.5})
    games = "coinrun", "maze", "CartPole-v1"  # the last one has no range, so each game has panels of its own
    runs = [write_run(tmp_path / game, {"env.name": game, "training.n_epochs": "1"}, [7.0] * 800) for game in games]
    draw_comparison(compared(runs, options=Options(with_reference=True)), [], ["main"])
    grey = {
        axis.get_title(): [line.get_label() for line in axis.lines if line.get_color() == "#555555"]
        for axis in drawn[0].subfigs[0].axes
        if axis.lines and " by steps" in axis.get_title()
    }
    assert grey == {
        "Episode reward by steps: CartPole-v1": [],
        "Episode reward by steps: coinrun": ["ours: ppo_fast, 1 seed", "OpenAI's PPO"],
        "Episode reward by steps: maze": ["OpenAI's PPO"],
    }


def test_the_figure_says_that_published_curves_are_missing_where_games_share_an_axis(two_games, drawn):
    draw_comparison(compared(two_games, options=Options(with_reference=True)), [], ["main"])
    draw_comparison(compared(two_games), [], ["main"])
    first, second = (figure._supxlabel.get_text().replace("\n", " ") for figure in drawn)
    assert "Published curves are of one game each" in first
    assert "Published curves" not in second


def test_nothing_touches_the_frame():
    axis = Figure().subplots()
    axis.plot([0, 1], [0.0, 2.0])
    lift_from_frame(axis, is_from_zero=True)
    low, high = axis.get_ylim()
    assert low < 0
    assert high > 2


def test_the_json_has_the_contents_of_the_tables(pair, tmp_path):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path / "out")]) == 0
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [run["name"] for run in data["runs"]] == ["sequential_1h", "parallel_1h"]
    assert data["runs"][1]["summary"]["average_fps"] == 2000.0
    assert data["runs"][0]["first_at_threshold"] == {
        "threshold": 9.0,
        "steps": 10_000,
        "seconds": 10.0,
        "core_hours": pytest.approx(10 * 2 / 3600),
    }
    assert data["scores"]["winner"] is None


def test_without_runs_the_latest_of_each_mode_are_compared(tmp_path, monkeypatch, capsys):
    for k, (name, flags) in enumerate(
        {
            "old": {"mode": "parallel"},
            "new": {"mode": "parallel"},
            "other_game": {"env.name": "maze", "mode": "distributed"},
            "other_algorithm": {"algorithm": "a2c", "mode": "sequential"},
            "sequential": {},
        }.items()
    ):
        run = write_run(tmp_path / "runs" / name, dict(flags), REWARDS)
        os.utime(run / "config.yaml", (1000 + k, 1000 + k))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--output", "out"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Metric"))
    assert header.split() == ["Metric", "sequential", "new"]


# Methods and scores


def test_runs_that_differ_in_seed_and_game_only_are_one_method(tmp_path):
    runs = [
        write_run(tmp_path / "a", {"env.seed": "1"}, REWARDS),
        write_run(tmp_path / "b", {"env.seed": "2", "env.name": "maze"}, REWARDS),
        write_run(tmp_path / "c", {"mode": "parallel"}, REWARDS),
        write_run(tmp_path / "d", {"env.seed": "3", "training.gamma": "0.9"}, REWARDS),
    ]
    methods = group_methods([read_run(run) for run in runs])
    assert methods.positions == {
        "PPO_Sequential (gamma=0.999)": [0, 1],
        "PPO_Parallel": [2],
        "PPO_Sequential (gamma=0.9)": [3],
    }
    assert methods.key == {}


MANY = {"training.gamma": "0.9", "training.n_steps": "64", "training.n_epochs": "2", "policy.network": "nature"}


@pytest.fixture
def recipes(tmp_path: Path) -> list[Path]:
    """Two recipes of one algorithm that differ in four settings, two seeds each."""
    return [
        write_run(tmp_path / f"{name}_{seed}", {**flags, "env.seed": str(seed)}, REWARDS)
        for name, flags in (("plain", {}), ("other", MANY))
        for seed in (1, 2)
    ]


def test_methods_that_differ_in_many_settings_have_short_names_and_a_key(recipes, tmp_path, capsys):
    assert main(["compare", *map(str, recipes), "--format", "svg,md", "--output", str(tmp_path / "out")]) == 0
    out, report, page, markdown, figure = (
        capsys.readouterr().out,
        *(
            (tmp_path / "out" / name).read_text()
            for name in ("comparison_report.txt", "comparison.html", "comparison.md", "comparison.svg")
        ),
    )
    assert row(out, "Metric") == ["PPO_Sequential A", "PPO_Sequential B"]
    assert out.startswith("PPO_Sequential A and PPO_Sequential B were each trained in 2 runs of 25 M steps on coinrun,")
    # what null stands for, as the runs have recorded it
    first = "PPO_Sequential A: n_steps=128, n_epochs=4, gamma=0.999, network=impala"
    second = "PPO_Sequential B: n_steps=64, n_epochs=2, gamma=0.9, network=nature"
    for text in (out, report, page, markdown, figure):
        assert first in text
        assert second in text
    assert "Of PPO_Sequential A, PPO_Sequential B:\nenv.seed: 1 / 2, 1 / 2\n" in report
    assert "\npolicy.network: impala, nature\n" in report


def test_the_key_names_the_runs_where_the_table_does(recipes):
    lines = compared(recipes[::2]).key_lines
    assert [line.split(": ")[0] for line in lines] == ["PPO_Sequential A (plain_1)", "PPO_Sequential B (other_1)"]


def test_a_name_that_is_too_long_is_replaced_even_if_only_one_setting_differs(tmp_path):
    networks = [f"my_module_{k}:make_a_network_of_a_kind" for k in range(28)]
    runs = [write_run(tmp_path / f"{k}", {"policy.network": name}, [1.0]) for k, name in enumerate(networks)]
    methods = group_methods([read_run(run) for run in runs])
    assert list(methods.positions)[25:] == ["PPO_Sequential Z", "PPO_Sequential AA", "PPO_Sequential AB"]
    assert methods.key["PPO_Sequential AB"] == f"network={networks[27]}"


def test_a_network_that_is_named_and_one_that_is_chosen_are_the_same(tmp_path):
    runs = [
        write_run(tmp_path / "chosen", {"env.seed": "1"}, REWARDS),
        write_run(tmp_path / "named", {"env.seed": "2", "policy.network": "impala"}, REWARDS),
    ]
    assert group_methods([read_run(run) for run in runs]).positions == {"PPO_Sequential": [0, 1]}
    assert [difference.key for difference in compared(runs).differences] == ["env.seed"]


def test_many_methods_are_counted_in_the_first_sentence(tmp_path):
    runs = [write_run(tmp_path / f"{k}", {"training.gamma": f"0.9{k}"}, REWARDS) for k in range(6)]
    assert headline(compared(runs))[0].startswith("6 methods were each trained in 1 run of 25 M steps on coinrun")


@pytest.mark.parametrize("length", [5, 25, 40, 47, 60, 85, 130, 220])
@pytest.mark.parametrize("panels", [["main"], ["seeds", "diagnostics"]])
def test_the_legend_lies_inside_the_figure_however_long_the_names(tmp_path, monkeypatch, length, panels):
    drawn: list[Figure] = []
    monkeypatch.setattr("rlcluster.reports.drawing._save", lambda figure, paths: drawn.append(figure))
    names = [f"{k}{'PPO_2' * length}"[:length] for k in range(3)]
    runs = [write_run(tmp_path / f"{k}", {"training.gamma": f"0.9{k}"}, REWARDS) for k in range(3)]
    draw_comparison(compared(runs)._replace(names=names), [], panels)
    (figure,) = drawn
    figure.draw_without_rendering()
    (legend,) = figure.subfigs[0].legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 <= figure.bbox.y1


def test_scores_come_from_unseen_levels_if_all_runs_have_them(tmp_path):
    runs = [
        write_run(tmp_path / "a", {}, REWARDS, evaluation=evaluation_of(7.5, 9.0)),
        write_run(tmp_path / "b", {"mode": "parallel"}, REWARDS, evaluation=evaluation_of(10.0)),
    ]
    scoring = compared(runs).scoring
    assert scoring.source == "mean reward on unseen levels, 50 episodes per run"
    assert scoring.is_normalised
    assert scoring.scores["PPO_Sequential"]["coinrun"].tolist() == [0.5]  # of 5 to 10
    assert scoring.aggregates["PPO_Parallel"] == {"iqm": (1.0, None, None), "optimality_gap": (0.0, None, None)}
    assert scoring.improvement == {}
    assert scoring.why_uncertain == (
        "No interval is shown: an interval takes at least 5 runs of a method, and PPO_Sequential and PPO_Parallel have "
        "1."
    )
    assert "Not enough runs to tell" in scoring.verdict.text


def test_scores_are_training_rewards_if_an_evaluation_is_missing(tmp_path):
    runs = [
        write_run(tmp_path / "a", {}, REWARDS, evaluation=evaluation_of(7.5)),
        write_run(tmp_path / "b", {"mode": "parallel"}, REWARDS),
    ]
    scoring = compared(runs).scoring
    assert scoring.source.startswith("mean reward of the last 100 training episodes")
    assert scoring.scores["PPO_Sequential"]["coinrun"].tolist() == pytest.approx([0.6])  # 8 of 5 to 10


def test_a_game_without_a_published_range_is_compared_by_raw_scores_but_not_averaged_with_others(tmp_path):
    cartpoles = [
        write_run(tmp_path / name, {"mode": name, "env.name": "CartPole-v1"}, REWARDS)
        for name in ("sequential", "parallel")
    ]
    scoring = compared(cartpoles).scoring
    assert not scoring.is_normalised
    assert scoring.scores["PPO_Parallel"]["CartPole-v1"].tolist() == [8.0]
    mixed = compared([*cartpoles, write_run(tmp_path / "maze", {"env.name": "maze"}, REWARDS)])
    assert mixed.scoring is None
    assert mixed.why_unscored.startswith("No score range is published for CartPole-v1, so games cannot be averaged")
    assert "--score-range" in mixed.why_unscored


def test_a_user_defined_range_changes_the_score(tmp_path, capsys):
    runs = [
        write_run(tmp_path / mode, {"mode": mode, "env.name": "jumper"}, REWARDS) for mode in ("sequential", "parallel")
    ]
    arguments = ["compare", *map(str, runs), "--output", str(tmp_path)]
    assert main([*arguments, "--score-range", "jumper=3,10"]) == 0
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["scores"]["methods"]["PPO_Parallel"]["iqm"]["value"] == pytest.approx(5 / 7)


def test_a_winner_is_named_given_enough_clear_runs(tmp_path):
    runs = [
        write_run(tmp_path / f"{mode}_{seed}", {"mode": mode, "env.seed": str(seed)}, [*REWARDS, level + seed / 10])
        for mode, level in (("sequential", 6.0), ("parallel", 9.0))
        for seed in range(5)
    ]
    assert compared(runs).scoring.verdict.winner == "PPO_Parallel"
    assert compared([run for run in runs if not run.name.endswith("_4")]).scoring.verdict.winner is None


def test_runs_with_the_same_seed_never_name_a_winner(tmp_path):
    runs = [
        write_run(tmp_path / f"{mode}_{k}", {"mode": mode}, [*REWARDS, level + k / 10])
        for mode, level in (("sequential", 6.0), ("parallel", 9.0))
        for k in range(4)
    ]
    verdict = compared(runs).scoring.verdict
    assert verdict == (None, "Not enough runs to tell: some runs share a seed, so they are not independent.")


def test_a_run_without_a_score_is_excluded_and_the_others_keep_theirs(tmp_path):
    evaluation = evaluation_of(7.5)
    runs = [
        write_run(tmp_path / "a", {"env.seed": "1"}, REWARDS, evaluation=evaluation),
        write_run(
            tmp_path / "b", {"env.seed": "2"}, REWARDS, state=RunState("failed", 0, 12, "out of memory")._asdict()
        ),
        write_run(tmp_path / "c", {"mode": "parallel"}, REWARDS, evaluation=evaluation),
    ]
    scoring = compared(runs).scoring
    assert scoring.source == "mean reward on unseen levels, 50 episodes per run"
    assert scoring.left_out == ["b"]
    assert scoring.scores["PPO_Sequential"]["coinrun"].tolist() == [0.5]


def test_efficiency_does_not_depend_on_the_length_of_a_run(tmp_path):
    rising = [10 * k / 400 for k in range(1, 401)]
    short = write_run(tmp_path / "short", {}, rising[:40])
    long = write_run(tmp_path / "long", {"mode": "parallel"}, rising)
    first, second = compared([short, long]).efficiency
    assert first == pytest.approx(second)
    assert first["steps"] == pytest.approx(0.5, abs=0.02)  # half of the 1 that it reaches


def test_efficiency_is_the_mean_reward_until_the_shortest_run_ends(tmp_path):
    slow = write_run(tmp_path / "slow", {}, [4.0] * 20, fps=500.0)  # 40 seconds
    fast = write_run(tmp_path / "fast", {"mode": "parallel"}, [4.0] * 20 + [8.0] * 20, fps=1000.0)  # 40 seconds
    by_slow, by_fast = compared([slow, fast]).efficiency
    assert by_slow == pytest.approx({"steps": 4.0, "seconds": 4.0, "core_hours": 4.0})
    assert by_fast["steps"] == pytest.approx(4.0)  # until 20,000 steps they are the same
    assert by_fast["seconds"] > 5.5  # until 40 seconds the fast one has seen the better half


def test_a_failed_run_changes_nobody_elses_row(tmp_path):
    failed, begun = RunState("failed", 0, 2, "out of memory")._asdict(), RunState("running", 0, 1)._asdict()
    whole = [
        write_run(tmp_path / "one", {"env.seed": "1"}, [4.0] * 10 + [8.0] * 20),
        write_run(tmp_path / "two", {"mode": "parallel"}, [4.0] * 20, fps=2000.0),
    ]
    others = [
        write_run(tmp_path / "lost", {"env.seed": "2"}, [1.0] * 2, state=failed),
        write_run(tmp_path / "alone", {"algorithm": "a2c", "mode": "parallel"}, [1.0] * 11, state=failed),
        write_run(tmp_path / "begun", {"algorithm": "impala", "mode": "parallel"}, [2.0], state=begun),
    ]
    before, after = compared(whole), compared([*whole, *others])
    assert after.efficiency[:2] == before.efficiency
    assert before.efficiency[0]["steps"] > 5.5  # half of its 20,000 steps had 4, half 8
    assert after.reached[:2] == before.reached
    assert before.reached[0].threshold == 4.0
    assert [one["steps"] for one in after.efficiency[2:]] == [None] * 3  # they ended before
    assert [one.steps for one in after.reached[2:]] == [None] * 3


def test_where_no_run_has_finished_the_report_says_what_the_runs_are_compared_until(tmp_path):
    stopped = RunState("preempted", 0, 12, "SIGTERM")._asdict()
    runs = [
        write_run(tmp_path / mode, {"mode": mode}, [4.0] * length, state=stopped)
        for mode, length in (("sequential", 10), ("parallel", 20))
    ]
    comparison = compared(runs)
    assert [one["steps"] for one in comparison.efficiency] == [4.0, 4.0]
    note = "No run of coinrun has finished: until the shortest run there is, and a threshold that all reach."
    assert note in score_lines(comparison)
    assert note in page_text(comparison, "page")


def references(folder: Path, *runs: Path | str) -> list[str]:
    assert main(["compare", *map(str, runs), "--reference", "--output", str(folder / "out")]) == 0
    return [one["text"] for one in json.loads((folder / "out" / "comparison.json").read_text())["references"]]


def test_where_nothing_of_ours_is_published_the_reference_is_openais(tmp_path, published):
    rewards = [7.5] * 1200  # 1.2 million steps
    run = write_run(tmp_path / "a", {}, rewards, evaluation=evaluation_of(6.0, episodes=300, steps=1_200_000))
    other = write_run(tmp_path / "b", {"env.distribution_mode": "hard"}, REWARDS)
    # OpenAI at 1.2 M steps: train 7.59 + 0.2 * 0.90 = 7.77, test 7.12 + 0.2 * 0.62 = 7.244
    assert references(tmp_path, run, other) == [
        "a: training levels at 1,200,000 steps: 7.50; OpenAI's PPO 7.77.",
        "a: unseen levels at 1,200,000 steps: 6.00; OpenAI's PPO 7.24.",
        "b: no scores are published for coinrun (distribution_mode=hard).",
    ]


def test_a_run_is_set_beside_ours_of_the_same_method_at_the_same_step(tmp_path, published):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 7.5, ("coinrun", 2): 9.6, ("maze", 1): 1.0})
    publish_runs(published, "ppo_paper", {("coinrun", 1): 2.4}, **{"training.n_epochs": "3"})
    own = write_run(tmp_path / "own", {**FAST_RECIPE, "env.seed": "9"}, [7.0] * 800)
    other = write_run(tmp_path / "other", {"algorithm": "a2c", "mode": "parallel"}, [6.0] * 800)
    # Ours at 800,000 steps: 32 of 60 slices; the last four (29 to 32, mean 30.5) are the 100,000 steps before.
    # 7.5 * 30.5 / 60 = 3.8125, 9.6 * 30.5 / 60 = 4.88, 2.4 * 30.5 / 60 = 1.22. OpenAI: 6.23 + 0.6 * 1.36 = 7.046
    assert references(tmp_path, own, other) == [
        "own: training levels at 800,000 steps: 7.00; ours 3.81 to 4.88 (ppo_fast, 2 seeds); OpenAI's PPO 7.05.",
        "other: training levels at 800,000 steps: 6.00; ours 3.81 to 4.88 (ppo_fast, 2 seeds), 1.22 (ppo_paper, 1 "
        "seed); OpenAI's PPO 7.05.",
    ]
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert data["references"][0]["ours"] == {"ppo_fast": pytest.approx([3.8125, 4.88], abs=1e-3)}
    assert "100,000 steps before" in data["reference_definition"]
    for name in ("comparison_report.txt", "comparison.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "3.81 to 4.88 (ppo_fast, 2 seeds)" in text
        assert "the episodes that finished in the 100,000 steps before" in text


def test_a_longer_run_is_also_compared_where_ours_end(tmp_path, published):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 6.0})
    evaluation = evaluation_of(6.5, steps=1_510_000)
    rising = [k / 1000 for k in range(3000)]
    run = write_run(tmp_path / "a", {**FAST_RECIPE}, rising, evaluation=evaluation)
    short = write_run(tmp_path / "b", {**FAST_RECIPE}, [5.0] * 90)
    # Ours end with slices 57 to 60: 6 * 58.5 / 60. The run has 1.4495 on average from step 1.4 to 1.5 M.
    assert references(tmp_path, run, short, "--per-run") == [
        "a: training levels at 1,500,000 steps: 1.45; ours 5.85 (ppo_fast, 1 seed); OpenAI's PPO 8.04.",
        "a: training levels at 3,000,000 steps: 2.95; OpenAI's PPO 8.59.",
        "a: unseen levels at 1,510,000 steps: 6.50; ours 5.00 (ppo_fast, 1 seed); OpenAI's PPO 7.44.",
        "b: 90,000 steps; scores are compared from 100,000 steps on.",
    ]


def test_a_method_is_set_beside_published_scores_as_one_row_for_each_game(tmp_path, published):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 7.5})
    runs = [
        write_run(
            tmp_path / f"{game}_{seed}",
            {**FAST_RECIPE, "env.name": game, "env.seed": str(seed)},
            [6.0 + seed] * (1200 + seed),
            evaluation=evaluation_of(5.0 + seed, steps=1_200_000) | {"env": game},
        )
        for game, number in (("coinrun", 3), ("maze", 5))
        for seed in range(number)
    ]
    # OpenAI: as above; on maze 5.44 to 5.44 and 5.19 to 5.26. Ours at 1.2 M steps: 7.5 * 46.5 / 60
    assert references(tmp_path, *runs) == [
        "PPO_Sequential, coinrun (3 runs): training levels at 1,200,000 steps: 7.00 (6.00 to 8.00); ours 5.81 "
        "(ppo_fast, 1 seed); OpenAI's PPO 7.77.",
        "PPO_Sequential, coinrun (3 runs): unseen levels at 1,200,000 steps: 6.00 (5.00 to 7.00); OpenAI's PPO 7.24.",
        "PPO_Sequential, maze (5 runs): training levels at 1,200,000 steps: 8.00 [6.80, 9.20]; OpenAI's PPO 5.44.",
        "PPO_Sequential, maze (5 runs): unseen levels at 1,200,000 steps: 7.00 [5.80, 8.20]; OpenAI's PPO 5.20.",
    ]
    (first, *_) = json.loads((tmp_path / "out" / "comparison.json").read_text())["references"]
    assert (first["reward"], first["low"], first["high"], first["is_interval"]) == (7.0, 6.0, 8.0, False)
    assert len(references(tmp_path, *runs, "--per-run")) == 2 * 8


def test_the_plot_of_a_run_shows_ours_and_openais_curves(tmp_path, published):
    publish_runs(published, "ppo_fast", {("coinrun", 1): 7.5})
    run = write_run(tmp_path / "a", {**FAST_RECIPE}, [7.0] * 800)
    file = tmp_path / "curves.svg"
    assert main(["plot", str(run), "--reference", "--output", str(file)]) == 0
    assert "<!-- ours: ppo_fast, 1 seed -->" in file.read_text()
    assert "<!-- OpenAI's PPO -->" in file.read_text()


def test_the_plot_says_where_nothing_is_published(tmp_path, capsys):
    run = write_run(tmp_path / "a", {"env.name": "CartPole-v1"}, [7.0] * 8)
    assert main(["plot", str(run), "--reference", "--output", str(tmp_path / "curves.svg")]) == 0
    assert capsys.readouterr().err == (
        "warning: --reference: no published score for CartPole-v1 with these settings and steps; the plot is without\n"
    )


# Fairness


def warned(*paths: Path) -> list[str]:
    runs = [read_run(path) for path in paths]
    return warnings_for(runs, run_names(list(paths)))


def test_identical_setups_need_no_warning(tmp_path):
    assert warned(*(write_run(tmp_path / name, {}, REWARDS) for name in "ab")) == []


def test_different_machines_are_named(tmp_path, pair):
    other = write_run(tmp_path / "c", {}, REWARDS, machine={"cpu_model": "another", "cores_allowed": 64})
    (warning,) = [text for text in warned(pair[0], other) if "different machines" in text]
    assert "sequential_1h: a processor, 2 cores allowed; c: another, 64 cores allowed" in warning


def test_all_machines_and_versions_of_a_resumed_run_are_named(tmp_path):
    first = {"cpu_model": "a processor", "cores_allowed": 2, "versions": {"rlcluster": "1", "torch": "2"}}
    later = {"from_update": 5, "cpu_model": "another", "cores_allowed": 8, "versions": {"rlcluster": "1", "torch": "3"}}
    one = write_run(tmp_path / "one", {}, REWARDS, machine=first)
    two = write_run(tmp_path / "two", {}, REWARDS, machine={**first, "resumed_on": [later]})
    own, machines, versions = warned(one, two)
    assert own.startswith("two: it was resumed on another machine at update 5")
    assert "one: a processor, 2 cores allowed; two: a processor, 2 cores allowed, then another, 8 cores" in machines
    assert "two: rlcluster 1 (no commit), torch 2, then rlcluster 1 (no commit), torch 3." in versions


@pytest.fixture
def cores(tmp_path: Path) -> list[Path]:
    """A method on 1 core and one on 2, two seeds each."""
    runs = []
    for mode, num_cores in (("sequential", 1), ("parallel", 2)):
        for seed in (1, 2):
            run = write_run(tmp_path / f"{mode}_{seed}", {"mode": mode, "env.seed": str(seed)}, REWARDS)
            summary = json.loads((run / "benchmark_metrics.json").read_text())
            (run / "benchmark_metrics.json").write_text(json.dumps(summary | {"num_cores": num_cores}))
            runs.append(run)
    return runs


def test_speeds_on_different_numbers_of_cores_are_named(cores, pair):
    (warning,) = warned(*cores)
    assert warning == (
        "The runs' speeds were measured on different numbers of cores, so steps/s, speed-up and minutes compare "
        "methods and cores together: sequential_1, sequential_2: 1 core; parallel_1, parallel_2: 2 cores."
    )
    assert warned(*pair) == []


def test_warnings_name_methods_where_all_their_runs_are_alike(cores, tmp_path):
    (warning,) = compared(cores).warnings
    assert warning.endswith(": PPO_Sequential: 1 core; PPO_Parallel: 2 cores.")
    other = write_run(tmp_path / "alone", {"mode": "sequential", "env.seed": "3"}, REWARDS)  # on 2 cores
    (warning,) = compared([*cores, other]).warnings
    assert warning.endswith(": sequential_1, sequential_2: 1 core; PPO_Parallel, alone: 2 cores.")


def test_cores_are_beside_the_speeds_where_they_differ(cores, pair):
    tables = score_tables(compared(cores))
    assert tables[0].headings[-3:] == ["cores", "steps/s", "minutes"]
    assert [line[-3] for line in tables[0].rows] == ["1", "2"]
    page = page_text(compared(cores), "page")
    assert '<th scope="col">cores</th><th scope="col">steps/s</th>' in page
    assert "cores" not in score_tables(compared(list(pair)))[0].headings
    assert '<th scope="col">cores</th><th scope="col">steps/s</th>' not in page_text(compared(list(pair)), "page")
    first, second = csv.DictReader(io.StringIO(csv_text(score_tables(compared(list(pair))))))
    assert (first["cores"], second["cores"]) == ("2", "2")  # always in the CSV


def test_different_background_load_is_named(tmp_path, pair):
    summary = json.loads((pair[0] / "benchmark_metrics.json").read_text())
    other = write_run(tmp_path / "c", {}, REWARDS, summary={**summary, "background_load": 0.35})
    (warning,) = [text for text in warned(pair[0], other) if "different background load" in text]
    assert "sequential_1h 0%; c 35%" in warning


def test_different_games_networks_and_budgets_are_named(tmp_path):
    summary = json.loads((write_run(tmp_path / "a", {}, REWARDS) / "benchmark_metrics.json").read_text())
    other = write_run(
        tmp_path / "b",
        {"env.name": "maze", "training.duration": "60s"},
        REWARDS,
        summary={**summary, "network": "nature"},
    )
    texts = warned(tmp_path / "a", other)
    assert any("different games" in text and "a: coinrun; b: maze" in text for text in texts)
    assert any("different networks" in text for text in texts)
    assert any(
        "different budgets" in text and "total_timesteps=2.5e+07" in text and "duration=60" in text for text in texts
    )


def test_equal_core_hours_are_an_equal_budget(tmp_path):
    summary = json.loads((write_run(tmp_path / "x", {}, REWARDS) / "benchmark_metrics.json").read_text())
    one = write_run(tmp_path / "a", {"training.duration": "60s"}, REWARDS, summary={**summary, "num_threads": 1})
    two = write_run(tmp_path / "b", {"training.duration": "30s"}, REWARDS, summary={**summary, "num_threads": 2})
    assert not any("budgets" in text for text in warned(one, two))


def test_different_difficulty_is_named_as_a_different_game(tmp_path, pair):
    hard = write_run(tmp_path / "c", {"env.distribution_mode": "hard"}, REWARDS)
    assert any("c: coinrun (distribution_mode=hard)" in text for text in warned(pair[0], hard))


def test_different_evaluations_are_named(tmp_path):
    runs = [
        write_run(tmp_path / "a", {}, REWARDS, evaluation=evaluation_of(7.0)),
        write_run(tmp_path / "b", {}, REWARDS, evaluation=evaluation_of(7.0, episodes=2) | {"deterministic": True}),
    ]
    (warning,) = [text for text in warned(*runs) if "evaluated differently" in text]
    assert "a: sampled actions, 50 episodes; b: greedy actions, 2 episodes" in warning


def test_a_runs_own_warnings_carry_its_name(tmp_path, pair):
    state = RunState("preempted", 1, 12, "SIGTERM")._asdict()
    stopped = write_run(tmp_path / "c", {}, REWARDS, state=state)
    assert warned(pair[0], stopped) == ["c: it was stopped (SIGTERM) after 12 updates and has not been resumed"]


# Bad input


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) != 0
    error = capsys.readouterr().err.strip()
    assert error.startswith("rlcluster: error: ")
    assert "\n" not in error
    return error


def test_a_single_run_is_refused_with_the_command_to_plot_it(pair, capsys):
    assert f"use: rlcluster plot {pair[0]}" in refusal(capsys, pair[0])


def test_the_same_run_twice_is_refused(pair, capsys, tmp_path):
    assert "the same run is given twice" in refusal(capsys, pair[0], pair[0], "--output", tmp_path / "out")


def test_sequential_without_parallel_is_refused(pair, capsys):
    assert "give --sequential DIR and --parallel DIR" in refusal(capsys, "--sequential", pair[0])


def test_output_inside_a_run_is_refused(pair, capsys):
    assert f"is inside the run {pair[0]}" in refusal(capsys, *pair, "--output", pair[0] / "logs")


def test_a_threshold_for_different_games_is_refused(pair, tmp_path, capsys):
    maze = write_run(tmp_path / "maze", {"env.name": "maze"}, REWARDS)
    assert "--threshold 5: the runs use different games" in refusal(capsys, pair[0], maze, "--threshold", "5")


def test_a_folder_with_a_dot_in_its_name_is_a_folder(pair, tmp_path):
    assert main(["compare", *map(str, pair), "--output", str(tmp_path / "out.v2")]) == 0
    assert (tmp_path / "out.v2" / "comparison.html").exists()


def test_a_range_for_a_game_that_no_run_has_is_refused(pair, capsys, tmp_path):
    text = refusal(capsys, *pair, "--score-range", "jumpr=3,10", "--output", tmp_path / "out")
    assert "--score-range jumpr=...: no run uses that game" in text


def test_long_names_are_listed_above_the_table(tmp_path):
    paths = [
        write_run(tmp_path / f"{name}_sequential_starpilot_seed1", {"algorithm": name}, REWARDS)
        for name in ("ppo", "a2c")
    ]
    text = table_text(compared(paths))
    assert "Run 1: ppo_sequential_starpilot_seed1\nRun 2: a2c_sequential_starpilot_seed1\n" in text


def test_odd_names_do_not_break_the_figure(tmp_path):
    paths = [write_run(tmp_path / name, {}, REWARDS) for name in ("_hidden", "$x$_{")]
    assert main(["compare", *map(str, paths), "--output", str(tmp_path / "out")]) == 0


def test_two_folders_with_the_same_name_get_distinct_names(tmp_path):
    assert run_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]


@pytest.mark.parametrize("text", ["jumper", "jumper=3", "jumper=10,3", "=1,2", "jumper=a,b"])
def test_a_malformed_range_is_refused(text, capsys):
    with pytest.raises(SystemExit) as left:
        main(["compare", "--score-range", text])
    assert left.value.code == 2
    assert "--score-range" in capsys.readouterr().err


def test_runs_with_nan_rewards_and_without_episodes_are_still_shown(tmp_path, capsys):
    first = write_run(tmp_path / "a", {}, [math.nan, 3.0])
    second = write_run(tmp_path / "b", {"mode": "parallel"}, [None, None], summary=None)
    assert main(["compare", str(first), str(second), "--output", str(tmp_path / "out")]) == 0
    assert "Excluded, without a score: b." in capsys.readouterr().out
    assert (tmp_path / "out" / "comparison.html").exists()


# The page


def test_untrusted_names_are_escaped(tmp_path):
    runs = [write_run(tmp_path / name, {}, REWARDS) for name in ("<script>alert(1)<", "b")]
    text = page_text(compared(runs), "</title><b>")
    assert "<script>alert" not in text
    assert "</title><b>" not in text


def test_fifteen_long_runs_make_a_page_below_a_megabyte(tmp_path):
    rewards = [float(k % 10) + k / 7 for k in range(1_000)]
    runs = [
        write_run(tmp_path / f"{k}_{seed}", {"env.seed": str(seed), "training.gamma": f"0.9{k}"}, rewards, 1000 + k / 3)
        for k in range(5)
        for seed in range(3)
    ]
    assert len(page_text(compared(runs), "fifteen").encode()) < 1_000_000


def test_a_table_without_a_value_in_a_column_leaves_it_out(pair):
    text = page_text(compared(list(pair)), "page")
    assert '<th scope="col">steps/s</th>' in text
    assert '<th scope="col">unseen levels</th>' not in text  # no run has an evaluation


def test_the_page_makes_no_network_requests(pair):
    text = page_text(compared(list(pair)), "page")
    assert "default-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # SVG's namespace, not an address
    assert "https://" not in text


# plot


def test_28_curves_have_distinct_styles():
    styles = {(one["color"], one["linestyle"]) for one in map(style, range(28))}
    assert len(styles) == 28


def test_openais_curve_and_those_of_five_recipes_have_distinct_lines_on_figures_and_the_page():
    """As many as configs/suite_procgen.yaml has; they are of one grey."""
    figures = [style(-position)["linestyle"] for position in range(1, 7)]
    assert len(set(figures)) == 6
    script = (resources.files("rlcluster.reports") / "assets" / "page.js").read_text()
    page = re.search(r"const PUBLISHED_DASHES = (\[.*\]);", script)
    assert page is not None
    named = {":": "2 3", "-": ""}
    assert json.loads(page[1]) == [named[line] if line in named else " ".join(map(str, line[1])) for line in figures]


def test_plot_draws_the_curves_of_a_run(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(pair[0])]) == 0
    assert Path("sequential_1h.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(pair[0]), "--output", "curves.svg"]) == 0
    assert "<svg" in Path("curves.svg").read_text()


def test_plot_draws_a_single_metrics_file(pair, tmp_path):
    (log,) = pair[0].glob("logs/*/metrics.jsonl")
    assert main(["plot", "--log-file", str(log), "--output", str(tmp_path / "curves.pdf")]) == 0
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a run directory, or --log-file FILE"),
        (["RUN", "--log-file", "x"], "give a run directory, or --log-file FILE"),
        (["RUN", "--output", "curves.txt"], "should end in .png, .pdf, .svg"),
        (["RUN", "--output", "nowhere/curves.png"], "no such directory"),
        (["RUN", "--output", "RUN/curves.png"], "is inside the run"),
        (["--log-file", "nowhere.jsonl"], "nowhere.jsonl: there is no such file"),
    ],
)
def test_bad_input_of_plot_is_refused_in_one_line(pair, arguments, message, capsys):
    assert main(["plot", *(text.replace("RUN", str(pair[0])) for text in arguments)]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
