"""Kills random processes of parallel runs at random times, with restarts enabled, and checks that the runs recover.

Each run (IMPALA and A3C alternately, on CartPole) repeatedly loses an actor, a worker or its learner (kill -9, or
SIGSTOP until time-out). It must resume from its last checkpoint and finish: no hang, no lost checkpoint, no orphaned
process or shared memory, and a step counter that never falls behind the last checkpoint.

    .venv/bin/python benchmarks/stress.py --kills 20 --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

KILLS_PER_RUN = 4
TIMEOUT_SECONDS = 15
RECOVERY_SECONDS = 180.0
SHARED_MEMORY = Path("/dev/shm")


class FailureFoundError(Exception):
    """A violated guarantee."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="total number (20)")
    parser.add_argument("--seed", type=int, default=None, help="of the times and victims; default: random")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    draws, kills = random.Random(seed), 0
    algorithms = ["impala", "a3c"]
    while kills < options.kills:
        algorithm = algorithms[kills // KILLS_PER_RUN % 2]
        number = min(KILLS_PER_RUN, options.kills - kills)
        with tempfile.TemporaryDirectory() as folder:
            try:
                _stress(algorithm, Path(folder, "run"), number, draws)
            except FailureFoundError as error:
                sys.exit(f"stress: {algorithm}: {error}")
        kills += number
        print(f"{kills} of {options.kills} kills survived", flush=True)


def _stress(algorithm: str, run: Path, kills: int, draws: random.Random) -> None:
    """One run that loses `kills` processes and then finishes."""
    names_before = _shared_names()
    process = subprocess.Popen(_command(algorithm, run, kills), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        saved, seen = 0, set[psutil.Process]()
        for kill in range(kills):
            _wait_for_restart(process, run, kill)
            time.sleep(draws.uniform(0.0, 4.0))  # during start-up, an update or a checkpoint
            saved = max(saved, _newest_checkpoint(run))
            seen.update(_strike(process, draws))
        _wait_for_restart(process, run, kills)
        if _state(run)["steps_global"] < saved:
            raise FailureFoundError(f"it resumed at step {_state(run)['steps_global']}, but {saved} had been saved")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=RECOVERY_SECONDS)
    except subprocess.TimeoutExpired:
        raise FailureFoundError("the run hangs") from None
    finally:
        process.kill()
    if process.returncode != 128 + signal.SIGTERM:
        raise FailureFoundError(f"exit code {process.returncode}: {errors.decode()}")
    if left := _shared_names() - names_before:
        raise FailureFoundError(f"shared memory left behind: {sorted(left)}")
    if left := [member for member in seen if _is_alive(member)]:
        raise FailureFoundError(f"processes left behind: {left}")
    (metrics,) = run.glob("logs/*/metrics.jsonl")
    steps = [json.loads(line)["steps_global"] for line in metrics.read_text().splitlines()]
    if steps != sorted(steps):
        raise FailureFoundError("steps_global decreases in the log")


def _command(algorithm: str, run: Path, max_restarts: int) -> list[str]:
    return [
        *(sys.executable, "-m", "rlcluster", "train", algorithm, "--mode", "parallel", "--num-workers", "2"),
        *("--env", "CartPole-v1", "--num-envs", "4", "--total-updates", "100000000", "--checkpoint-updates", "50"),
        *("--num-threads", "1", "--timeout-seconds", str(TIMEOUT_SECONDS)),
        *("--max-restarts", str(max_restarts), "--output-dir", str(run)),
    ]


def _wait_for_restart(process: subprocess.Popen[bytes], run: Path, restarts: int) -> None:
    """Waits until the run has restarted `restarts` times and its processes are up."""
    deadline = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            _, errors = process.communicate()
            raise FailureFoundError(f"ended with {process.returncode} after restart {restarts}: {errors.decode()}")
        state = _state(run)
        if state.get("restarts") == restarts and state.get("state") == "running" and len(_members(process)) >= 3:
            return
        time.sleep(0.05)
    raise FailureFoundError(f"restart {restarts} did not happen within {RECOVERY_SECONDS:g} s")


def _strike(process: subprocess.Popen[bytes], draws: random.Random) -> list[psutil.Process]:
    """Kills or stops one of the run's processes; returns all of them."""
    members = _members(process)
    if members:
        victim = draws.choice(members)
        is_stopped = draws.random() < 0.2
        print(f"  {'stop' if is_stopped else 'kill'} {victim.pid} of {len(members)}", flush=True)
        victim.send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
    return members


def _members(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The learner and its actors or workers."""
    members = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                members.append(child)
        except psutil.NoSuchProcess:
            continue
    return members


def _is_alive(member: psutil.Process) -> bool:
    """A zombie is not alive: an actor whose learner was killed stays one until init reaps it."""
    try:
        return member.is_running() and member.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _state(run: Path) -> dict[str, int]:
    try:
        state: dict[str, int] = json.loads((run / "run_state.json").read_text())
    except FileNotFoundError:
        return {}
    return state


def _newest_checkpoint(run: Path) -> int:
    steps = [int(path.stem.rsplit("_", 1)[1]) for path in run.glob("checkpoints/*_step_*.pt")]
    return max(steps, default=0)


def _shared_names() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("*")} if SHARED_MEMORY.is_dir() else set()


if __name__ == "__main__":
    main()
