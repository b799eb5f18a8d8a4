"""Publishes runs with the package: adds them to src/rlcluster/reports/published_runs/METHOD.json. Runs are only read.

A run is published under the name of the recipe whose settings it has, of configs/suite_procgen.yaml or
suite_procgen16.yaml; it replaces the published run of the same recipe, game and seed. Unfinished runs are published as
such. If one of the runs cannot be published, none is.

    .venv/bin/python scripts/publish.py runs/suite_procgen/runs/*
    .venv/bin/python scripts/publish.py --agent runs/suite_procgen/runs/ppo_fast_coinrun_seed1

With `--agent` the parameters of one finished run are added as well, as src/rlcluster/agents/METHOD_GAME.pt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.experiments.suite_plan import read_suite
from rlcluster.reports import reference
from rlcluster.reports.curves import slices_of
from rlcluster.reports.published import (
    POINTS,
    LevelsResult,
    PublishedMethod,
    PublishedRun,
    method_settings,
    method_text,
    read_method,
)
from rlcluster.runs import agents
from rlcluster.runs.checkpoint import save_checkpoint
from rlcluster.runs.checkpoints import find_checkpoint
from rlcluster.runs.reader import RecordedRun, read_run
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src" / "rlcluster" / "reports" / "published_runs"
SUITES = (ROOT / "configs" / "suite_procgen.yaml", ROOT / "configs" / "suite_procgen16.yaml")
IMAGE_NETWORK = "impala"  # what `policy.network: null` stands for with images
VERSIONS = ("rlcluster", "python", "torch")


class Recipe(NamedTuple):
    """The protocol of a method."""

    settings: Mapping[str, Any]  # those that decide what is learnt
    planned_steps: int


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    recipes = read_recipes(options.suite)
    problems: list[str] = []
    changes: dict[str, PublishedMethod] = {}
    for path in options.runs:
        try:
            run = read_run(path)
            name = recipe_of(run, recipes)
            _add(changes, options.folder, name, run, recipes[name].planned_steps)
        except UserError as error:
            problems.append(str(error))
    if problems:
        print("\n".join([*problems, "nothing was published"]), file=sys.stderr)
        return 2
    options.folder.mkdir(exist_ok=True)
    for name, method in changes.items():
        write_atomically(options.folder / f"{name}.json", method_text(method).encode())
    if options.agent:
        publish_agent(options.runs[0], recipes)
    return 0


def publish_agent(path: Path, recipes: Mapping[str, Recipe]) -> None:
    """The parameters of the run's last checkpoint."""
    run = read_run(path)
    file = agents.FOLDER / f"{recipe_of(run, recipes)}_{run.game}.pt"
    file.parent.mkdir(exist_ok=True)
    save_checkpoint(file, agents.agent_content(find_checkpoint(path, "--agent")))
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def read_recipes(suites: Iterable[Path]) -> dict[str, Recipe]:
    """By name. A name that two suites give to different settings is refused."""
    recipes: dict[str, Recipe] = {}
    for file in suites:
        for cell in read_suite(file).cells:
            steps = cell.settings.training.total_timesteps
            if steps is None:
                raise UserError(f"{file}: the budget of published runs is given as total_timesteps")
            recipe = Recipe(method_settings(_with_network(cell.settings)), steps)
            if recipes.setdefault(cell.method, recipe) != recipe:
                raise UserError(f"{file}: {cell.method} has other settings than in another suite; rename one")
    return recipes


def recipe_of(run: RecordedRun, recipes: Mapping[str, Recipe]) -> str:
    """The recipe whose settings the run has. Raises a UserError, in one line, if it cannot be published."""
    if procgen_game(run.settings.env.name) is None or not reference.is_published_setting(run.settings.env):
        raise UserError(f"{run.path}: {run.task} is not published; easy levels, 200 of them, default visuals are")
    if not slices_of(run.metrics).episodes.any():
        raise UserError(f"{run.path}: no episode has finished yet; let it run on")
    own = method_settings(_with_network(run.settings))
    differences = {name: _differences(own, recipe.settings) for name, recipe in recipes.items()}
    nearest = min(differences, key=lambda name: (_is_other_algorithm(own, recipes[name]), len(differences[name])))
    if differences[nearest]:
        listed = ", ".join(differences[nearest])
        raise UserError(f"{run.path}: is a run of no recipe; it differs from the nearest, {nearest}, in {listed}")
    return nearest


def _is_other_algorithm(own: Mapping[str, Any], recipe: Recipe) -> bool:
    return bool(own["algorithm"] != recipe.settings["algorithm"])


def entry_of(run: RecordedRun, planned_steps: int) -> PublishedRun:
    """The run as compact data."""
    machines = [_machine(run, machine) for machine in run.machines or [{}]]
    later = [machine for k, machine in enumerate(machines) if machine not in machines[:k]][1:]
    evaluation, steps = _evaluation(run)
    return PublishedRun(
        game=run.game,
        seed=run.settings.env.seed,
        state="unknown" if run.state is None else run.state.state,
        planned_steps=planned_steps,
        curve=slices_of(run.metrics, POINTS),
        evaluation=evaluation,
        evaluated_steps=steps,
        machine={**machines[0], **({"resumed_on": later} if later else {})},
        background_load=run.summary.get("background_load"),
    )


def _add(changes: dict[str, PublishedMethod], folder: Path, name: str, run: RecordedRun, planned_steps: int) -> None:
    """Adds the run to the method that will be written, which begins with what its file has."""
    file, settings = folder / f"{name}.json", _with_network(run.settings)
    if name not in changes:
        changes[name] = read_method(file) if file.exists() else PublishedMethod(name, settings, [])
    differences = _differences(method_settings(settings), method_settings(changes[name].settings))
    if differences:
        listed = ", ".join(differences)
        raise UserError(f"{run.path}: {name} is published with other settings: {listed}; to begin anew delete {file}")
    entry = entry_of(run, planned_steps)
    replaced = [one for one in changes[name].runs if (one.game, one.seed) == (entry.game, entry.seed)]
    kept = [one for one in changes[name].runs if one not in replaced]
    changes[name] = changes[name]._replace(runs=[*kept, entry])
    _print_entry(name, entry, replaced, run.warnings)


def _print_entry(name: str, entry: PublishedRun, replaced: Sequence[PublishedRun], warnings: Sequence[str]) -> None:
    before = f", replaces {replaced[0].steps:,} steps" if replaced else ""
    times = "times of a quiet machine" if entry.is_quiet else "times not of a quiet machine"
    evaluated = "evaluated" if entry.evaluation else "not evaluated"
    print(f"{name} {entry.game} seed {entry.seed}: {entry.steps:,} steps, {entry.state}, {evaluated}, {times}{before}")
    for warning in warnings:
        print(f"  {warning}")


def _evaluation(run: RecordedRun) -> tuple[dict[str, LevelsResult], int | None]:
    """Only with sampled actions, as in training; greedy ones are another score."""
    if run.evaluation is None or run.evaluation.deterministic:
        return {}, None
    results = {}
    for levels, result in run.evaluation.results.items():
        low, high = result.get("reward_interval_95") or (None, None)
        results[levels] = LevelsResult(float(result["reward_mean"]), low, high, int(result["episodes"]))
    return results, run.evaluation.steps_global


def _machine(run: RecordedRun, machine: Mapping[str, Any]) -> dict[str, Any]:
    versions = machine.get("versions") or {}
    return {
        "cpu_model": machine.get("cpu_model"),
        "cores": run.cores,
        "versions": {name: versions[name] for name in VERSIONS if name in versions},
        "git_commit": machine.get("git_commit"),
    }


def _with_network(settings: Settings) -> Settings:
    network = settings.policy.network or IMAGE_NETWORK
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"network": network})})


def _differences(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """`training.n_epochs=3 instead of 1`"""
    keys = dict.fromkeys([*other, *own])
    return [f"{key}={own.get(key)} instead of {other.get(key)}" for key in keys if own.get(key) != other.get(key)]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--agent", action="store_true", help="the parameters of the run too; one RUN")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the published files")
    parser.add_argument("--suite", type=Path, nargs="+", default=SUITES, help="the suites with the recipes")
    parsed = parser.parse_args(arguments)
    if parsed.agent and len(parsed.runs) != 1:
        parser.error("--agent: give one RUN")
    return parsed


if __name__ == "__main__":
    sys.exit(main())
