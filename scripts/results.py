"""The published results, from the data in the package: the picture docs/images/learning.png (reward by wall-clock, all
methods, one game), and on the console the tables of docs/results.md as Markdown. What is missing is shown as missing.

    make results        # ARGS="--game starpilot --picture starpilot.png"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlcluster.experiments.suite_plan import Suite, read_suite
from rlcluster.reports.curves import SCORE_STEPS
from rlcluster.reports.drawing import figure_for, label, style
from rlcluster.reports.published import PublishedRun, mean_score_curve, published_methods
from rlcluster.reports.reference import openai_ppo
from rlcluster.settings.games import game_name
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.console import counted
from rlcluster.system.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "configs" / "suite_procgen.yaml"
SUITE_OF_ALL_GAMES = ROOT / "configs" / "suite_procgen16.yaml"
PICTURE = ROOT / "docs" / "images" / "learning.png"
PICTURE_HEIGHT = 3.6  # inches
MISSING, BUSY = "missing", " \\*"

Published = Mapping[str, Sequence[PublishedRun]]  # by method


class Speed(NamedTuple):
    """How fast a method runs: of quiet runs on the most cores, if there are quiet ones."""

    fps: float
    is_quiet: bool
    cores: int
    machine: str

    def minutes(self, steps: float) -> float:
        return steps / self.fps / 60


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    published = {method.name: method.runs for method in published_methods(options.folder)}
    try:
        draw_learning(published, read_suite(SUITE).methods, options.game, options.picture)
        print("\n".join([*suite_tables(read_suite(SUITE), published), *games_table(published), *notes(published)]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"picture: {options.picture}", file=sys.stderr)
    return 0


def draw_learning(published: Published, methods: Sequence[str], game: str, path: Path) -> None:
    """A line per method: its mean over seeds, with the band from the lowest to the highest seed."""
    runs_of = {method: _of_game(published, method, game) for method in methods}
    if not any(runs_of.values()):
        raise UserError(f"--game {game}: nothing is published for it; see scripts/publish.py")
    with figure_for([path], PICTURE_HEIGHT) as figure:
        axis = figure.subplots()
        for k, (method, runs) in enumerate(runs_of.items()):
            _draw_method(axis, method, runs, style(k))
        title = f"{game}, training levels (mean of seeds, band: lowest to highest)"
        label(axis, title, "wall-clock (minutes)", f"mean reward of the last {SCORE_STEPS:,} steps")
        axis.legend(frameon=True, framealpha=0.85, edgecolor="none")  # lines of the grid do not cross its words


def _draw_method(axis: Any, method: str, runs: Sequence[PublishedRun], look: Mapping[str, Any]) -> None:
    if not runs:
        axis.plot([], [], **look, label=f"{method}: {MISSING}")
        return
    curve, speed = mean_score_curve(runs), speed_of(runs)
    minutes = speed.minutes(1.0) * curve.steps
    facts = [counted(curve.num_seeds, "seed"), f"{curve.steps[-1] / 1e6:.1f} M steps", counted(speed.cores, "core")]
    text = f"{method} ({', '.join(facts if speed.is_quiet else [*facts, 'busy machine'])})"
    axis.plot(minutes, curve.mean, **look, markevery=8, label=text)
    axis.fill_between(minutes, curve.low, curve.high, color=look["color"], alpha=0.15, linewidth=0)


def speed_of(runs: Sequence[PublishedRun]) -> Speed:
    quiet = [run for run in runs if run.is_quiet]
    chosen = quiet or runs
    cores = max(int(run.machine["cores"]) for run in chosen)
    chosen = [run for run in chosen if run.machine["cores"] == cores]
    machine = " or ".join(dict.fromkeys(f"{counted(cores, 'core')} of {run.machine['cpu_model']}" for run in chosen))
    return Speed(float(np.median([run.fps for run in chosen])), bool(quiet), cores, machine)


def suite_tables(suite: Suite, published: Published) -> Iterator[str]:
    """Methods × games: on training levels, with the minutes, and on unseen levels."""
    games = [game_name(game) for game in suite.plan.games]
    steps, seeds = suite.plan.budget.total_timesteps or 0, len(suite.plan.seeds)
    yield f"Training levels, mean reward of the {SCORE_STEPS:,} steps before {steps / 1e6:g} M steps, and minutes:\n"
    yield from _table(suite.methods, games, lambda method, game: _training_cell(published, method, game, steps, seeds))
    yield _row(["OpenAI's PPO", *(_number(_openai(game, steps, "train")) for game in games)])
    yield f"\nUnseen levels, mean reward in evaluation after {steps / 1e6:g} M steps:\n"
    yield from _table(suite.methods, games, lambda method, game: _unseen_cell(published, method, game, steps, seeds))
    yield _row(["OpenAI's PPO", *(_number(_openai(game, steps, "test")) for game in games)])


def games_table(published: Published) -> Iterator[str]:
    """All games of the second suite: its method versus OpenAI's PPO at the same step."""
    suite = read_suite(SUITE_OF_ALL_GAMES)
    (method,), steps, seeds = suite.methods, suite.plan.budget.total_timesteps or 0, len(suite.plan.seeds)
    yield f"\n{method} on all games after {steps / 1e6:g} M steps:\n"
    yield _row(["game", "training levels", "OpenAI's PPO", "unseen levels", "OpenAI's PPO"])
    yield _row(["---"] * 5)
    for game in map(game_name, suite.plan.games):
        yield _row(
            [
                game,
                _training_cell(published, method, game, steps, seeds),
                _number(_openai(game, steps, "train")),
                _unseen_cell(published, method, game, steps, seeds),
                _number(_openai(game, steps, "test")),
            ]
        )


def notes(published: Published) -> Iterator[str]:
    """How to read the tables, and the machines of the times."""
    groups = [_of_game(published, method, run.game) for method, runs in published.items() for run in runs]
    machines = dict.fromkeys(speed.machine for runs in groups if (speed := speed_of(runs)).is_quiet)
    commits = dict.fromkeys(
        str(run.machine.get("git_commit"))[:10] for runs in published.values() for run in runs if run.machine
    )
    places = ", ".join(machines) or "no quiet machine"
    yield f"\nIn parentheses: lowest to highest seed. Minutes on {places}; an asterisk marks times of a machine"
    yield "that did other work as well. OpenAI's PPO: mean of 3 runs, linearly interpolated."
    yield f"Commits: {', '.join(commits) or MISSING}."


def _training_cell(published: Published, method: str, game: str, steps: float, seeds: int) -> str:
    runs = _of_game(published, method, game)
    if not runs:
        return MISSING
    scores = [score for run in runs if (score := run.score_at(steps)) is not None]
    speed = speed_of(runs)
    busy = "" if speed.is_quiet else BUSY
    if scores:
        return f"{_spread(scores, seeds)}, {speed.minutes(steps):.0f} min{busy}"
    longest = max(runs, key=lambda run: run.steps)
    reached = _number(longest.score_at(longest.steps))
    return f"unfinished: {reached} at {longest.steps / 1e6:.2f} M steps, {speed.minutes(longest.steps):.0f} min{busy}"


def _unseen_cell(published: Published, method: str, game: str, steps: float, seeds: int) -> str:
    found = [score for run in _of_game(published, method, game) if (score := run.unseen_at(steps)) is not None]
    return _spread(found, seeds) if found else MISSING


def _spread(scores: Sequence[float], seeds: int) -> str:
    """`8.41 (8.20 to 8.60)`, and how many seeds that is if it is not all."""
    parts = [f"{min(scores):.2f} to {max(scores):.2f}"] if len(scores) > 1 else []
    parts += [f"{len(scores)} of {counted(seeds, 'seed')}"] if len(scores) < seeds else []
    return f"{np.mean(scores):.2f}" + (f" ({', '.join(parts)})" if parts else "")


def _table(methods: Sequence[str], games: Sequence[str], cell: Callable[[str, str], str]) -> Iterator[str]:
    yield _row(["method", *games])
    yield _row(["---"] * (1 + len(games)))
    for method in methods:
        yield _row([method, *(cell(method, game) for game in games)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of_game(published: Published, method: str, game: str) -> list[PublishedRun]:
    return [run for run in published.get(method, []) if run.game == game]


def _openai(game: str, steps: float, levels: str) -> float | None:
    return openai_ppo(EnvSettings(name=game), steps, levels)


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="coinrun", help="of the picture (coinrun)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to draw it")
    parser.add_argument("--folder", type=Path, help="the published files, instead of the package's")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
