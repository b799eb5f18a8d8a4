"""Shows that a run which is killed and resumed equals one without a break, bit for bit, where that is promised.

Each round trains a few tiny updates of one cell on one game, kills all processes of the run at a random moment after
its second update (SIGKILL), resumes it for two more, and trains the same again without a break. Logs (all fields but
timings and memory) and last checkpoints (parameters, optimiser, counters, simulators, pending rollouts) must be equal.

    .venv/bin/python benchmarks/resumption.py                          # PPO on all 16 games
    .venv/bin/python benchmarks/resumption.py --cells all --games coinrun,maze
    .venv/bin/python benchmarks/resumption.py --cells all --games all
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from rlcluster.runs.checkpoint import content_hash, load_checkpoint
from rlcluster.settings.games import PROCGEN_GAMES
from same_results import DEPENDS_ON_TIME

CELLS = {
    "ppo": ("ppo", "--mode", "sequential"),
    "a2c": ("a2c", "--mode", "sequential"),
    "impala": ("impala", "--mode", "sequential"),
    "a3c": ("a3c", "--mode", "sequential"),
    "impala_parallel": ("impala", "--mode", "parallel", "--num-workers", "2", "--deterministic"),
    "ppo_parallel": ("ppo", "--mode", "parallel", "--num-workers", "2"),
}
SIZES = ("--num-envs", "4", "--n-steps", "8", "--network", "nature", "--num-threads", "1", "--checkpoint-updates", "1")
UPDATES_BEFORE, UPDATES_AFTER = 2, 2
MOST_DELAY_SECONDS = 0.5  # several updates: the kill falls into acting, learning, logging or saving
PATIENCE_SECONDS = 300.0  # for whatever must happen; a busy machine is slow
OF_THIS_PART = ("settings", "elapsed_seconds", "recent_seconds", "peak_memory_gb")  # folders, timings, memory

# Trainings are forked from one process that has imported everything, but has started no thread.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "rlcluster.cli", "rlcluster.training.loop", "rlcluster.environments.procgen"])


class DifferenceFoundError(Exception):
    """A resumed run that is not the same as one without a break, or a run that did not end as it should."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default="all", help="names of games, separated by commas, or all (all)")
    parser.add_argument("--cells", default="ppo", help=f"some of {','.join(CELLS)}, or all (ppo)")
    parser.add_argument("--seed", type=int, default=0, help="of the runs, and of the moments of the kills (0)")
    options = parser.parse_args()
    num_different = num_rounds = 0
    for cell in _chosen(options.cells, tuple(CELLS), parser):
        for game in _chosen(options.games, PROCGEN_GAMES, parser):
            num_rounds += 1
            with tempfile.TemporaryDirectory() as folder:
                try:
                    text = f"same       {cell} {game}: {_round(cell, game, options.seed, Path(folder))}"
                except DifferenceFoundError as error:
                    num_different += 1
                    text = f"DIFFERENT  {cell} {game}: {error}"
            print(text, flush=True)
    print(f"{num_rounds - num_different} of {num_rounds} resumed runs are the same", flush=True)
    return 1 if num_different else 0


def _chosen(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> Sequence[str]:
    names = known if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{', '.join(unknown)}: unknown; choose from {', '.join(known)}, or all")
    return names


def _round(cell: str, game: str, seed: int, folder: Path) -> str:
    """Says after which update the run was killed; raises a DifferenceFoundError."""
    killed, unbroken = folder / "killed", folder / "unbroken"
    arguments = (*CELLS[cell], "--env", game, "--seed", str(seed), *SIZES)
    _train_and_kill(arguments, killed, random.Random(f"{seed} {cell} {game}"))
    num_logged = len(_log(killed))
    budget = ("--total-updates", str(num_logged + UPDATES_AFTER))
    _train("--resume", *budget, "--output-dir", str(killed))
    _train(*arguments, *budget, "--output-dir", str(unbroken))
    _refuse_difference(killed, unbroken)
    return f"killed after update {num_logged}, equal up to update {num_logged + UPDATES_AFTER}"


def _train_and_kill(arguments: Sequence[str], run: Path, draws: random.Random) -> None:
    """SIGKILL to all processes of the run at once: as after a loss of power, none of them can clean up."""
    output = run.with_suffix(".txt")
    training = _start(output, *arguments, "--total-updates", "100000000", "--output-dir", str(run))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(_log(run)) < UPDATES_BEFORE:
        if not training.is_alive() or time.monotonic() > deadline:
            training.kill()
            raise DifferenceFoundError(f"no {UPDATES_BEFORE} updates: {output.read_text()}")
        time.sleep(0.01)
    time.sleep(draws.uniform(0.0, MOST_DELAY_SECONDS))
    members = [psutil.Process(training.pid), *psutil.Process(training.pid).children(recursive=True)]
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):  # it died with its parent
            member.kill()
    training.join()


def _train(*arguments: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        training = _start(Path(file.name), *arguments)
        training.join(PATIENCE_SECONDS)
        if training.exitcode != 0:
            training.kill()
            raise DifferenceFoundError(f"{' '.join(arguments)}: {Path(file.name).read_text()}")


def _start(output: Path, *arguments: str) -> Any:
    training = CONTEXT.Process(target=_run_command, args=(str(output), ("train", *arguments)))
    training.start()
    return training


def _run_command(output: str, arguments: Sequence[str]) -> None:
    """In a process of its own: what `rlcluster` does."""
    from rlcluster.cli import main as run_command

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(run_command(arguments))


def _refuse_difference(resumed: Path, unbroken: Path) -> None:
    logs = _log(resumed), _log(unbroken)
    for got, expected in zip(*logs, strict=False):
        if fields := [key for key in got.keys() | expected.keys() if got.get(key) != expected.get(key)]:
            raise DifferenceFoundError(f"update {expected['update']}: {', '.join(sorted(fields))}")
    if len(logs[0]) != len(logs[1]):
        raise DifferenceFoundError(f"{len(logs[0])} updates are logged, not {len(logs[1])}")
    contents = _last_checkpoint(resumed), _last_checkpoint(unbroken)
    hashes = [{name: content_hash(part) for name, part in content.items()} for content in contents]
    if parts := [name for name in hashes[0].keys() | hashes[1].keys() if hashes[0].get(name) != hashes[1].get(name)]:
        raise DifferenceFoundError(f"the last checkpoint: {', '.join(sorted(parts))}")


def _log(run: Path) -> list[dict[str, Any]]:
    """The whole lines of the log, without what depends on time: the writer may be in the middle of the last."""
    text = "".join(file.read_text() for file in run.glob("logs/*/metrics.jsonl"))
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{k: v for k, v in line.items() if k not in DEPENDS_ON_TIME and k[:2] != "t_"} for line in lines]


def _last_checkpoint(run: Path) -> dict[str, Any]:
    (file,) = run.glob("checkpoints/*_final.pt")
    return {name: part for name, part in load_checkpoint(file).content.items() if name not in OF_THIS_PART}


if __name__ == "__main__":
    sys.exit(main())
