"""Ranks agree on the plan of a run: each reports the cores it may use, then all resolve the same inputs."""

from __future__ import annotations

import json
from typing import Any

from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import Plan, RankInputs, Rates, needs_rates, partition, refuse_idle_helpers, resolve
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.launcher import Placement
from rlcluster.system.processes import POLL_SECONDS, ChildProcesses
from rlcluster.system.signals import StopRequest

MEASURED_ENVIRONMENTS = 16
MEASURED_STEPS = 32


def agree_on_plan(
    settings: Settings, ranks: Ranks, has_kernels: bool = True, threads_that_pay: int | None = None
) -> Plan:
    """Called once by every rank, before its loop starts. The last two are of its own network and kernels."""
    envs = partition(range(settings.env.num_envs), ranks.world_size)[ranks.rank]
    refuse_idle_helpers(settings, envs)  # before anything is measured
    rates = measure(settings, len(envs)) if needs_rates(settings) else None
    own = json.dumps(RankInputs(cores.observe(), ranks.placement, rates, has_kernels, threads_that_pay)).encode()
    return resolve(settings, [_inputs(*json.loads(part)) for part in ranks.gather_bytes([own])])


def _inputs(observed: list[Any], placement: list[Any], rates: list[float] | None, *of_network: Any) -> RankInputs:
    known = None if rates is None else Rates(*rates)
    return RankInputs(cores_from(observed), Placement(*placement), known, *of_network)


def cores_from(data: list[Any]) -> Cores:
    """From JSON."""
    allowed, affinity, together = data
    return Cores(allowed, tuple(Core(*core) for core in affinity), together)


def measure(settings: Settings, num_envs: int) -> Rates:
    """In a process of its own: the environments that it tries leave nothing behind here."""
    env = settings.env.model_copy(update={"num_envs": min(num_envs, MEASURED_ENVIRONMENTS)})
    steps = min(settings.training.n_steps, MEASURED_STEPS)
    # Minibatches of the default size: the given ones need not fit the shortened rollout.
    shortened = settings.training.model_copy(update={"n_steps": steps, "batch_size": None, "n_minibatches": None})
    hardware = settings.hardware.model_copy(update={"num_threads": 1})
    tried = settings.model_copy(update={"mode": "sequential", "env": env, "hardware": hardware, "training": shortened})
    timeout_seconds = settings.parallel.timeout_seconds
    arguments = (tried.model_dump_json(),)
    with ChildProcesses(1, _measure, lambda _: arguments, "measurement", timeout_seconds) as children:
        while not children.all_done:
            children.wait(POLL_SECONDS)
        rates: Rates = children.results[0]
    return rates


def _measure(number: int, stop: StopRequest, settings_json: str) -> Rates:
    del number, stop
    cores.limit_threads(1)
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.training.synchronous import Synchronous

    settings, ranks = Settings.model_validate_json(settings_json), Ranks()
    plan = resolve(settings, [RankInputs(cores.observe(), ranks.placement)])
    engine = Synchronous(settings, plan, ranks, None)
    for _ in range(2):  # the first one warms up
        ranks.timer.reset()
        engine.update(0.0)
    engine.close()
    steps = settings.rollout_size
    return Rates(steps / ranks.timer.seconds("rollout"), steps / ranks.timer.seconds("learn"))
