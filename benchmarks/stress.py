"""Harms runs of every algorithm and mode at random, and checks that nothing is lost and nothing hangs.

Each round trains CartPole in one cell of the README's table, harms it once (a process of any role is killed, stopped,
paused or signalled; the disk fills up; the reader of its output goes away; all of it is suspended), and sometimes cuts
its newest checkpoint. Some runs are evaluated while they train. The run must end as promised, or go on; leave no
process and no shared memory; and resume from its last checkpoint to its end, with every update in its log once. A seed
fixes cells, harms and delays.

    .venv/bin/python benchmarks/stress.py --minutes 10 --seed 0
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from rlcluster.runs.status import read_state
from rlcluster.settings.algorithms import ALGORITHMS

TIMEOUT_SECONDS = 30  # a busy machine may keep a process waiting for many seconds
PATIENCE_SECONDS = 180.0  # for whatever must happen; a busy machine is slow
MORE_UPDATES = 20
SHARED_MEMORY = Path("/dev/shm")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
DAMAGE_SHARE = 0.3
EVALUATED_SHARE = 0.4  # of the runs
EVALUATION = ("--eval-interval", "10000", "--eval-episodes", "2")


class FailureFoundError(Exception):
    """A violated guarantee."""


class Victim(NamedTuple):
    """A running training and the process of it that is harmed."""

    training: subprocess.Popen[str]
    role: str  # parent, rank, helper or evaluation
    process: psutil.Process
    members: list[psutil.Process]  # all of the run, the parent first, then rank 0 if it is another process
    draws: random.Random
    writer: psutil.Process  # rank 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="begin no further round after this time (2)")
    parser.add_argument("--seed", type=int, default=None, help="of cells, harms and delays; default: random")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", flush=True)
    end, rounds = time.monotonic() + 60 * options.minutes, 0
    for number, (algorithm, mode, harm) in enumerate(_rounds(random.Random(seed))):
        if time.monotonic() >= end:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                text = _round(algorithm, mode, harm, Path(folder, "run"), random.Random(f"{seed} {number}"))
            except FailureFoundError as error:
                sys.exit(f"stress: seed {seed}, round {number}: {algorithm} {mode}, {harm.__name__}: {error}")
        rounds += 1
        print(f"round {number}: {algorithm} {mode}: {text}", flush=True)
    print(f"{rounds} rounds survived", flush=True)


Harm = Callable[[Victim], int | None]  # does it, and returns the exit code that must follow; None: the run goes on


def _rounds(draws: random.Random) -> Iterator[tuple[str, str, Harm]]:
    """Every cell in turn, and every harm in turn, each in an order of its own."""
    cells = [(name, mode) for name, record in ALGORITHMS.items() for mode in record.cells]
    harms = list(HARMS)
    for number in itertools.count():
        if number % len(cells) == 0:
            draws.shuffle(cells)
        if number % len(harms) == 0:
            draws.shuffle(harms)
        yield *cells[number % len(cells)], harms[number % len(harms)]


def _round(algorithm: str, mode: str, harm: Harm, run: Path, draws: random.Random) -> str:
    names_before = _shared_names()
    is_evaluated = draws.random() < EVALUATED_SHARE
    command = [*_command(algorithm, mode, run), *(EVALUATION if is_evaluated else ())]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait(lambda: len(_checkpoints(run)) >= 2, training, "no two checkpoints")
        time.sleep(draws.uniform(0.0, 2.0))
        victim = _choose(training, mode, is_evaluated, draws)
        expected = harm(victim)
        if expected is None:
            _see_it_continue(training, run)
            training.send_signal(signal.SIGTERM)
            expected = 128 + signal.SIGTERM
        errors = _end_of(training)
    finally:
        training.kill()
    if training.returncode != expected:
        raise FailureFoundError(f"exit code {training.returncode}, not {expected}: {errors}")
    if "Traceback" in errors:
        raise FailureFoundError(errors)
    _refuse_leftovers(victim.members, names_before)
    damage = _damage(run, draws)
    _resume(run, is_damaged=bool(damage))
    return f"{harm.__name__.strip('_')} ({victim.role}){damage}: exit code {expected}, resumed and finished"


def _command(algorithm: str, mode: str, run: Path) -> list[str]:
    processes = ["--num-workers", "2", "--timeout-seconds", str(TIMEOUT_SECONDS)]
    return [
        *(sys.executable, "-m", "rlcluster", "train", algorithm, "--mode", mode, "--output-dir", str(run)),
        *("--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "32", "--total-updates", "100000000"),
        *("--num-threads", "1", "--checkpoint-updates", "20", *(processes if mode != "sequential" else ())),
    ]


# Harms


def _kill(victim: Victim) -> int | None:
    victim.process.kill()
    return {"parent": -signal.SIGKILL, "evaluation": None}.get(victim.role, 1)


def _stop(victim: Victim) -> int | None:
    """For good; but nobody watches the parent, so that is continued. A run needs no evaluation."""
    victim.process.suspend()
    if victim.role == "evaluation":
        return None
    if victim.role != "parent":
        return 71
    time.sleep(victim.draws.uniform(0.0, 2.0))
    victim.process.resume()
    return None


def _pause(victim: Victim) -> None:
    victim.process.suspend()
    time.sleep(victim.draws.uniform(0.0, TIMEOUT_SECONDS / 4))
    victim.process.resume()


def _suspend_all(victim: Victim) -> None:
    """As Ctrl-Z does, for longer than the time-out."""
    for member in victim.members:
        member.suspend()
    time.sleep(TIMEOUT_SECONDS + 2)
    for member in victim.members:
        member.resume()


def _signal(victim: Victim) -> int | None:
    number = victim.draws.choice(SIGNALS)
    victim.process.send_signal(number)
    return None if victim.role == "evaluation" else 128 + number


def _signal_all(victim: Victim) -> int:
    """As a terminal does."""
    number = victim.draws.choice(SIGNALS)
    for member in victim.members:
        member.send_signal(number)
    return 128 + number


def _fill_disk(victim: Victim) -> int:
    """No file of the process that writes the run can grow."""
    victim.writer.rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    return 74


def _close_pipe(victim: Victim) -> None:
    assert victim.training.stdout is not None
    victim.training.stdout.close()


HARMS: tuple[Harm, ...] = (_kill, _kill, _stop, _pause, _suspend_all, _signal, _signal_all, _fill_disk, _close_pipe)


# What must hold


def _choose(training: subprocess.Popen[str], mode: str, is_evaluated: bool, draws: random.Random) -> Victim:
    """The evaluation is the process that rank 0 has started last."""
    parent = psutil.Process(training.pid)
    ranks = [] if mode == "sequential" else _spawned(parent)
    writer = ranks[0] if ranks else parent
    evaluation = [_spawned(writer)[-1]] if is_evaluated else []
    helpers = [helper for rank in ranks for helper in _spawned(rank) if helper not in evaluation]
    roles = {"parent": [parent], "rank": ranks, "helper": helpers, "evaluation": evaluation}
    role = draws.choice([name for name, members in roles.items() if members])
    members = [parent, *ranks, *helpers, *evaluation]
    return Victim(training, role, draws.choice(roles[role]), members, draws, writer)


def _see_it_continue(training: subprocess.Popen[str], run: Path) -> None:
    before = _newest_step(run)
    _wait(lambda: _newest_step(run) > before, training, "the run does not continue")


def _end_of(training: subprocess.Popen[str]) -> str:
    """Its stderr."""
    if training.stdout is not None and training.stdout.closed:
        training.stdout = None
    try:
        _, errors = training.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise FailureFoundError("the run does not end") from None
    return errors


def _refuse_leftovers(members: list[psutil.Process], names_before: set[str]) -> None:
    _, alive = psutil.wait_procs([member for member in members if _is_alive(member)], timeout=10)
    if left := [member for member in alive if _is_alive(member)]:
        raise FailureFoundError(f"processes left behind: {left}")
    if left_names := {name for name in _shared_names() - names_before if name.startswith("rlcluster")}:
        raise FailureFoundError(f"shared memory left behind: {sorted(left_names)}")


def _damage(run: Path, draws: random.Random) -> str:
    """Sometimes cuts the newest of several checkpoints; says so."""
    files = _checkpoints(run)
    if len(files) < 2 or draws.random() >= DAMAGE_SHARE:
        return ""
    newest = max(files, key=_step_of)
    length = draws.randrange(newest.stat().st_size)
    newest.write_bytes(newest.read_bytes()[:length])
    return f", newest checkpoint cut to {length:,} bytes"


def _resume(run: Path, is_damaged: bool) -> None:
    """The run ends as if it had not been harmed."""
    state = read_state(run)
    if state is None or state.state == "running":
        raise FailureFoundError(f"its status is {state}")
    saved, updates = _newest_step(run), state.update + MORE_UPDATES
    command = [sys.executable, "-m", "rlcluster", "train", "--resume", "--output-dir", str(run)]
    resumed = subprocess.run(
        [*command, "--total-updates", str(updates)], capture_output=True, text=True, timeout=600, check=False
    )
    if resumed.returncode != 0:
        raise FailureFoundError(f"not resumed, exit code {resumed.returncode}: {resumed.stderr}")
    if ("Falling back" in resumed.stderr) != is_damaged or "has lost" in resumed.stderr:
        raise FailureFoundError(f"resumed with: {resumed.stderr}")
    if not is_damaged and f"step {saved:,}\n" not in resumed.stdout:
        raise FailureFoundError(f"resumed elsewhere than at step {saved:,}: {resumed.stdout}")
    (metrics,) = run.glob("logs/*/metrics.jsonl")
    logged = [json.loads(line)["update"] for line in metrics.read_text().splitlines()]
    if logged != list(range(1, updates + 1)):
        raise FailureFoundError(f"its log has {len(logged)} updates, not 1 to {updates} once each")


def _wait(condition: Callable[[], bool], training: subprocess.Popen[str], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if training.poll() is not None:
            raise FailureFoundError(f"{otherwise}: exit code {training.returncode}: {_end_of(training)}")
        if time.monotonic() > deadline:
            raise FailureFoundError(f"{otherwise} within {PATIENCE_SECONDS:g} s")
        time.sleep(0.05)


def _spawned(process: psutil.Process) -> list[psutil.Process]:
    """The ranks of a parent or the helpers of a rank, in the order of their start."""
    children = sorted(process.children(), key=lambda child: child.create_time())
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def _is_alive(member: psutil.Process) -> bool:
    """A zombie is not alive: a helper whose rank was killed stays one until init reaps it."""
    try:
        return member.is_running() and member.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _checkpoints(run: Path) -> list[Path]:
    return list(run.glob("checkpoints/*_step_*.pt"))


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.rsplit("_", 1)[1])


def _newest_step(run: Path) -> int:
    return max(map(_step_of, _checkpoints(run)), default=0)


def _shared_names() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*")} if SHARED_MEMORY.is_dir() else set()


if __name__ == "__main__":
    main()
