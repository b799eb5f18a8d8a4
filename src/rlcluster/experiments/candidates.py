"""What `rlcluster tune` tries: ways to use the cores that do not change what a run learns, the simplest first; only if
the user allows it, also other numbers of environments and batch sizes, which do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rlcluster.plan import Plan
from rlcluster.settings.schema import Settings

CHUNK_FACTORS = (0.5, 2)
CHUNKS = ", chunks of "
# Of a chunk, so that its backward pass uses the thread: networks/kernels/library.py, which `train` may not import yet.
SAMPLES_PER_THREAD, MOST_THREADS = 32, 64
# Factors of the number of environments and of the batch size.
CHANGES = ((0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0), (2.0, 2.0))


class Candidate(NamedTuple):
    """Settings by key; the mode is one of them. No effect on the result beyond the order of floating-point sums, unless
    it changes the algorithm.
    """

    name: str
    flags: Mapping[str, str]
    changes_algorithm: bool = False


def layouts(settings: Settings, physical_cores: int, threads_that_pay: int | None = None) -> list[Candidate]:
    """Ranks x threads over all cores, and one thread alone; for IMPALA and A3C actors or workers instead. Where there
    are more cores than threads that pay in a backward pass (None: nothing limits them), also one process on all cores
    with chunks that are large enough for them.
    """
    if settings.traits.helpers == "actors":
        return _with_actors(settings, physical_cores)
    divisors = [count for count in range(1, physical_cores + 1) if physical_cores % count == 0]
    found = []
    if settings.traits.helpers is None:
        found = [_sequential(threads) for threads in sorted({1, physical_cores})]
        size = min(SAMPLES_PER_THREAD * min(physical_cores, MOST_THREADS), settings.batch_size)
        if threads_that_pay is not None and size // SAMPLES_PER_THREAD > threads_that_pay:
            found.append(_with_chunks(found[-1], size))
    for count in divisors:
        if count <= settings.env.num_envs and (count > 1 or settings.traits.helpers is not None):
            found.append(_parallel(settings, count, physical_cores // count))
    return found


def host_layouts(settings: Settings, num_hosts: int, cores_of_each: int) -> list[Candidate]:
    """Ranks x threads on each host; for IMPALA and A3C one rank on each, with actors or workers."""
    if settings.traits.helpers is not None:
        one_host = settings.model_copy(
            update={"env": settings.env.model_copy(update={"num_envs": _share(settings, num_hosts)})}
        )
        return [_over_hosts(layout, num_hosts) for layout in layouts(one_host, cores_of_each)]
    counts = [count for count in range(1, cores_of_each + 1) if cores_of_each % count == 0]
    return [
        _ranks_on_hosts(num_hosts, count, cores_of_each // count)
        for count in counts
        if num_hosts * count <= settings.env.num_envs
    ]


def _share(settings: Settings, num_hosts: int) -> int:
    return max(1, settings.env.num_envs // num_hosts)


def _ranks_on_hosts(num_hosts: int, count: int, threads: int) -> Candidate:
    flags = {"mode": "distributed", "cluster.num_workers": str(num_hosts * count), "hardware.num_threads": str(threads)}
    return Candidate(f"{num_hosts} hosts, on each {_name(count, 'rank', threads)}", flags)


def _over_hosts(layout: Candidate, num_hosts: int) -> Candidate:
    flags = {
        "mode": "distributed",
        "cluster.num_workers": str(num_hosts),
        "parallel.workers_per_rank": layout.flags["parallel.num_workers"],
        "hardware.num_threads": layout.flags["hardware.num_threads"],
    }
    return Candidate(f"{num_hosts} hosts, on each {layout.name}", flags)


def variants(settings: Settings, best: Candidate, default_chunk: int) -> list[Candidate]:
    """Of the best layout: other chunk sizes, where a minibatch has that many samples; processes that are not pinned."""
    ranks = _num_ranks(settings, best)
    own_batch = settings.batch_size // ranks  # of a process that learns
    plain = settings.hardware.chunk_size or default_chunk  # that the layouts have, unless they say otherwise
    given = min(int(best.flags.get("hardware.chunk_size", plain)), own_batch)
    found = [
        _with_chunks(best, size)
        for size in (int(factor * given) for factor in CHUNK_FACTORS)
        if 1 <= size <= own_batch and size != plain
    ]
    if best.flags["mode"] != "sequential" and settings.parallel.pin_workers:
        found.append(Candidate(f"{best.name}, not pinned", {**best.flags, "parallel.pin_workers": "false"}))
    return found


def _num_ranks(settings: Settings, candidate: Candidate) -> int:
    """That share a minibatch."""
    key = "cluster.num_workers" if candidate.flags["mode"] == "distributed" else "parallel.num_workers"
    is_one = settings.traits.helpers is not None and candidate.flags["mode"] == "parallel"
    return 1 if is_one else int(candidate.flags.get(key, "1"))


def _num_processes(candidate: Candidate) -> int:
    """That have environments."""
    counts = (
        candidate.flags.get(key, "1")
        for key in ("parallel.num_workers", "parallel.workers_per_rank", "cluster.num_workers")
    )
    return math.prod(map(int, counts))


def algorithm_changes(settings: Settings, best: Candidate) -> list[Candidate]:
    """Of the best so far: half and twice the environments and the batch size, where these are valid settings."""
    found: dict[tuple[int, int], Candidate] = {}
    for env_factor, batch_factor in CHANGES:
        num_envs = int(env_factor * settings.env.num_envs)
        if num_envs < _num_processes(best):
            continue  # every process needs an environment
        changed = settings.model_copy(update={"env": settings.env.model_copy(update={"num_envs": num_envs})})
        batch_size = changed.rollout_size
        if settings.traits.has_minibatches:
            wanted = batch_factor * settings.batch_size
            batch_size = min(changed.valid_batch_sizes(), key=lambda size: abs(math.log(size / wanted)))
        if (num_envs, batch_size) != (settings.env.num_envs, settings.batch_size):
            found.setdefault((num_envs, batch_size), _changed(settings, best, num_envs, batch_size))
    return list(found.values())


def _changed(settings: Settings, best: Candidate, num_envs: int, batch_size: int) -> Candidate:
    flags, parts = {**best.flags, "env.num_envs": str(num_envs)}, [f"{num_envs} environments"]
    if settings.traits.has_minibatches:
        flags["training.batch_size"] = str(batch_size)
        parts.append(f"batches of {batch_size}")
    return Candidate(f"{best.name}, {', '.join(parts)} (changes the algorithm)", flags, True)


def name_of(plan: Plan) -> str:
    """Of the layout that a run with this plan has."""
    first = plan.ranks[0]
    if plan.mode == "sequential":
        return _sequential(first.threads).name
    if not first.helpers:
        return _name(plan.world_size, "rank", first.threads)
    noun = "worker" if plan.learns_in_helpers else "actor"
    return _name(len(first.helpers), noun, plan.learner_threads)


def _with_actors(settings: Settings, physical_cores: int) -> list[Candidate]:
    """Actors and learner on cores of their own, or together on all."""
    counts = [count for count in (1, 2, 4, 8, 16) if count <= min(physical_cores, settings.env.num_envs)]
    pairs = [(count, threads) for count in counts for threads in (physical_cores - count, physical_cores) if threads]
    return [_parallel(settings, count, threads) for count, threads in pairs]


def _sequential(threads: int) -> Candidate:
    name = f"sequential, {threads} thread{'s' if threads > 1 else ''}"
    return Candidate(name, {"mode": "sequential", "hardware.num_threads": str(threads)})


def _with_chunks(layout: Candidate, size: int) -> Candidate:
    name = layout.name.partition(CHUNKS)[0]
    return Candidate(f"{name}{CHUNKS}{size}", {**layout.flags, "hardware.chunk_size": str(size)})


def _parallel(settings: Settings, count: int, threads: int) -> Candidate:
    noun = {"actors": "actor", "workers": "worker", None: "rank"}[settings.traits.helpers]
    flags = {"mode": "parallel", "parallel.num_workers": str(count), "hardware.num_threads": str(threads)}
    return Candidate(_name(count, noun, threads), flags)


def _name(count: int, noun: str, threads: int) -> str:
    learner = "learner with " if noun == "actor" else ""
    plural = "s" if count > 1 else ""
    return f"{count} {noun}{plural}, {learner}{threads} thread{'s' if threads > 1 else ''}{'' if learner else ' each'}"
