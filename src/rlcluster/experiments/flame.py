"""`rlcluster profile --flame`: a flame graph of Python in one rank, by py-spy, in a pass of its own after the one that
takes the timings.

py-spy starts the run, so it needs no right to trace other processes: it may always read its own children. It does not
stop them to read their stacks (`--nonblocking`), and reads few a second.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rlcluster.experiments.commands import ERROR_PREFIX, failure_text, run_to_completion
from rlcluster.profiling.flame import flame_graph, read_stacks, training_of
from rlcluster.runs.config import write_run_settings
from rlcluster.runs.profile_files import write_flame
from rlcluster.settings.schema import Settings
from rlcluster.system.console import say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.launcher import launched
from rlcluster.system.scratch import scratch_folder
from rlcluster.system.signals import StopRequest

RATE = 25  # samples a second
SECONDS = 20  # of training
# py-spy may be killed, and would leave the run behind.
START = (
    "import os, sys; from rlcluster.system.processes import die_with_parent; die_with_parent(os.getppid()); "
    "from rlcluster.cli import main; sys.exit(main(sys.argv[1:]))"
)


def find_py_spy() -> Path:
    """Beside Python, as pip puts it, or on the path. Raises a UserError if it is missing or cannot be used."""
    placement = launched()
    if placement is not None and placement.world_size > 1:
        raise UserError(
            f"--flame starts a run of its own, but a launcher has started {placement.world_size} ranks; leave it out, "
            "or profile on one machine without the launcher"
        )
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise UserError("--flame needs py-spy: pip install 'rl-cluster-benchmark[flame]', or leave --flame out")
    return Path(found)


def record_flame(run: Path, settings: Settings, py_spy: Path) -> int:
    """Trains again with the settings of `run`, and writes the flame graph into it; returns the exit code."""
    say(f"flame graph: training again for {SECONDS} s, sampled by py-spy ...")
    with StopRequest(ignores_second_signal=True) as stop, scratch_folder() as folder:
        raw = folder / "stacks.txt"
        sampling = ["--nonblocking", "--rate", str(RATE), "--subprocesses", "--nolineno", "--format", "raw"]
        config = write_run_settings(folder, sampled_settings(settings))
        training = ["train", "--config", str(config), "--output-dir", str(folder / "run")]
        command = [str(py_spy), "record", *sampling, "--output", str(raw), "--", sys.executable, "-c", START, *training]
        code, errors = run_to_completion(command, stop)
        if stop.signal_number is not None:
            return 128 + stop.signal_number
        stacks = training_of(read_stacks(raw.read_text()), _depth(settings)) if raw.exists() else []
    if code != 0 or ERROR_PREFIX in errors or not stacks:  # py-spy's exit code is 0 even if the run has failed
        raise UserError(f"--flame: the sampled run failed: {failure_text(code, errors)}", EXIT_RUN_FAILED)
    title = f"{settings.algorithm} on {settings.env.name}, {settings.mode}: Python in {_who(settings)}"
    say(f"flame graph: {write_flame(run, flame_graph(stacks, title, RATE))}")
    return 0


def sampled_settings(settings: Settings) -> Settings:
    """The same training for some seconds. Nobody else is told about it, and nothing is written elsewhere."""
    budget = {"total_timesteps": None, "total_updates": None, "duration": float(SECONDS), "eval_interval": None}
    output = {"profile": None, "checkpoint_dir": None, "log_dir": None, "loggers": (), "callbacks": ()}
    return settings.model_copy(
        update={
            "training": settings.training.model_copy(update=budget),
            "output": settings.output.model_copy(update=output),
        }
    )


def _depth(settings: Settings) -> int:
    """Of the process that learns, below py-spy."""
    if settings.mode == "sequential":
        return 1
    return 3 if settings.traits.helpers == "workers" else 2


def _who(settings: Settings) -> str:
    return {1: "the process", 2: "rank 0", 3: "the first worker of rank 0"}[_depth(settings)]
