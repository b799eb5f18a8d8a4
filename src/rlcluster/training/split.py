"""How the cores of a machine are shared out between actors and the learner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rlcluster.settings.schema import Settings
from rlcluster.system import machine
from rlcluster.system.errors import UserError
from rlcluster.system.processes import POLL_SECONDS, Crew
from rlcluster.system.signals import StopRequest

SHARED_EFFICIENCY = 0.95  # of cores that actors and learner take turns on: they push each other out of the caches
MEASURED_ENVIRONMENTS = 16
MEASURED_STEPS = 32


class Rates(NamedTuple):
    """What one core does in a second."""

    act: float  # environment steps
    learn: float  # samples


class Split(NamedTuple):
    num_actors: int
    learner_threads: int
    torch_threads: int  # of the learner; our own convolutions have `learner_threads`
    cores: Sequence[int]  # the learner's first, then one for each actor; empty: the system deals them out

    def actor_cores(self) -> list[Sequence[int]]:
        return [self.cores[k : k + 1] for k in range(self.learner_threads, self.learner_threads + self.num_actors)]

    def learner_cores(self) -> Sequence[int]:
        return self.cores[: self.learner_threads]


class Candidate(NamedTuple):
    rate: float  # samples per second that it should reach
    num_actors: int
    learner_threads: int


def choose(
    cores: int, rates: Rates, most_actors: int, num_actors: int | None = None, learner_threads: int | None = None
) -> Candidate:
    """Actors and threads of the learner, where they are not given: those with the highest rate.

    Apart: A actors and L threads with a core each reach min(A act, L learn). Together, on all cores: whoever has work
    takes a core, so the cores' whole time is used, at some cost for taking turns.
    """
    threads = learner_threads or cores
    together = min(SHARED_EFFICIENCY * cores / (1 / rates.act + 1 / rates.learn), threads * rates.learn)
    enough = num_actors or min(most_actors, math.ceil(together / rates.act))
    candidates = [Candidate(min(together, enough * rates.act), enough, threads)]
    for actors in [num_actors] if num_actors else range(1, min(most_actors, cores - 1) + 1):
        threads = learner_threads or cores - actors
        if threads > 0 and actors + threads <= cores:
            candidates.append(Candidate(min(actors * rates.act, threads * rates.learn), actors, threads))
    return max(candidates, key=lambda candidate: (candidate.rate, -candidate.num_actors))


def split_cores(settings: Settings, num_envs: int, local_world_size: int) -> Split:
    """For a rank with this many environments; measures the rates first unless all is given."""
    cores = cores_of_rank(local_world_size)
    actors, threads = settings.crew_size, settings.hardware.num_threads
    if actors is None or threads is None:
        _, actors, threads = choose(cores, measure(settings, num_envs), num_envs, actors, threads)
    is_apart = settings.parallel.pin_workers and actors + threads == cores
    pinned = cores_to_pin(cores, local_world_size) if is_apart else []
    # Where there are more threads than cores, torch leaves the actors' cores alone: its operations are short, and its
    # threads would spin or wait for each other in between. What must be repeatable may not depend on the machine.
    torch_threads = threads if settings.parallel.deterministic else min(threads, max(1, cores - actors))
    return Split(actors, threads, torch_threads, pinned)


def cores_of_rank(local_world_size: int) -> int:
    """A rank's part of the physical cores of this machine."""
    return max(1, machine.default_workers() // local_world_size)


def cores_to_pin(cores: int, local_world_size: int) -> list[int]:
    """So many cores that are this rank's alone; none where other ranks of the machine may be on the same ones."""
    own = machine.own_cores()
    return own[:cores] if len(own) == cores or (local_world_size == 1 and len(own) > cores) else []


def refuse_idle_workers(settings: Settings, num_envs: int) -> None:
    """Raises a UserError if a rank with this many environments has more workers of its own."""
    size = settings.crew_size
    if size is not None and size > num_envs:
        key = "num_workers" if settings.mode == "parallel" else "workers_per_rank"
        raise UserError(
            f"parallel.{key}={size} but a rank has {num_envs} of env.num_envs={settings.env.num_envs}: every worker "
            "needs an environment; use fewer workers or more environments"
        )


def measure(settings: Settings, num_envs: int) -> Rates:
    """In a process of its own: the environments that it tries leave nothing behind here."""
    env = settings.env.model_copy(update={"num_envs": min(num_envs, MEASURED_ENVIRONMENTS)})
    steps = min(settings.training.n_steps, MEASURED_STEPS)
    shortened = settings.training.model_copy(update={"n_steps": steps})
    hardware = settings.hardware.model_copy(update={"num_threads": 1})
    tried = settings.model_copy(update={"env": env, "hardware": hardware, "training": shortened})
    timeout_seconds = settings.parallel.timeout_seconds
    with Crew(1, _measure, lambda number: (tried.model_dump_json(),), "measurement", timeout_seconds) as crew:
        while not crew.is_done:
            crew.wait(POLL_SECONDS)
        rates: Rates = crew.results[0]
    return rates


def _measure(number: int, stop: StopRequest, settings_json: str) -> Rates:
    del number, stop
    machine.limit_threads(1)
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.training.synchronous import Synchronous

    settings, ranks = Settings.model_validate_json(settings_json), Ranks()
    engine = Synchronous(settings, ranks, None)
    for _ in range(2):  # the first one warms up
        ranks.timer.reset()
        engine.update(0.0)
    engine.close()
    steps = settings.rollout_size
    return Rates(steps / ranks.timer.seconds("rollout"), steps / ranks.timer.seconds("learn"))
