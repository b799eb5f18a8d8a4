"""train(settings) -> run directory: open it, choose the loop, run, close in all cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster import machine
from rlcluster.config import Settings
from rlcluster.loops import loop_for, refuse_empty_cell


class TrainingResult(NamedTuple):
    run: Path
    summary: dict[str, Any]
    signal_number: int | None  # the signal that stopped the run before its budget was spent


def train(settings: Settings, resume: bool = False) -> TrainingResult:
    """One run from its settings to its summary; raises a UserError for what the user can mend."""
    refuse_empty_cell(settings.algorithm, settings.mode)
    num_threads = machine.num_threads(settings.hardware.num_threads)
    machine.limit_threads(num_threads)  # before anything below imports torch or numpy
    from rlcluster import environments, policy
    from rlcluster.collectives import Ranks
    from rlcluster.console import make_reporter
    from rlcluster.interruption import StopRequest
    from rlcluster.run_directory import SUMMARY_FILE, RunDirectory

    if num_threads > machine.cores_allowed():
        print(
            f"warning: {num_threads} threads share {machine.cores_allowed()} cores, which is slower; use fewer",
            file=sys.stderr,
        )
    spec = environments.describe(settings.env)
    network = policy.choose_network(settings.policy, spec)
    kernels = policy.choose_kernels(settings.hardware.kernels, network, spec)
    chosen = settings.policy.model_copy(update={"network": network})
    settings = settings.model_copy(update={"policy": chosen})
    with StopRequest() as stop, RunDirectory(settings, resume) as run:
        print(
            f"{settings.log_name} on {settings.env.name}: {settings.env.num_envs} environments, {network} network "
            f"({kernels.instruction_set if kernels else 'torch'}), {num_threads} threads -> {run.path}"
        )
        run.write_machine_facts(machine.facts(num_threads))
        loop = loop_for(settings.algorithm, settings.mode)
        is_finished = loop(settings, Ranks(), run, stop, make_reporter())
    summary = json.loads((run.path / SUMMARY_FILE).read_text())
    return TrainingResult(run.path, summary, None if is_finished else stop.signal_number)
