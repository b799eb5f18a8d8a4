"""Profiles some updates of a run: every process records, all ranks meet, and rank 0 writes page, figures and trace.

What a run learns does not change: nothing is recorded but times. With actors that nobody waits for (IMPALA), the order
of arrivals differs from run to run anyway.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from rlcluster import environments
from rlcluster.networks.operations import layer_works
from rlcluster.profiling.analysis import analyse
from rlcluster.profiling.findings import Findings, RunFacts
from rlcluster.profiling.page import page_text
from rlcluster.profiling.recorder import ProcessName, Recorder
from rlcluster.profiling.roofline import Peaks, measure_peaks
from rlcluster.profiling.summary import summary_text
from rlcluster.profiling.trace import trace_events
from rlcluster.runs.profile_files import profile_page
from rlcluster.system.console import say
from rlcluster.system.machine import BackgroundLoad, cpu_model
from rlcluster.training.loops import Job

if TYPE_CHECKING:
    from rlcluster.training.loop import Engine


class Profiler(Protocol):
    """Told about every update of the loop."""

    def before_update(self, updates: int) -> None:
        """`updates` were made so far."""

    def after_update(self, updates: int) -> None: ...

    def close(self) -> None:
        """The run ends: what was begun is written."""


class NoProfiler:
    def before_update(self, updates: int) -> None:
        pass

    def after_update(self, updates: int) -> None:
        pass

    def close(self) -> None:
        pass


def make_profiler(job: Job, engine: Engine) -> Profiler:
    return NoProfiler() if job.settings.output.profile is None else RunProfiler(job, engine)


class RunProfiler:
    """On every rank."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self._job, self._engine = job, engine
        assert job.settings.output.profile is not None
        self._first = job.settings.output.profile
        self._num_updates = job.settings.output.profile_updates
        self._recorder: Recorder | None = None
        self._begun = 0

    def before_update(self, updates: int) -> None:
        if updates + 1 != self._first:
            return
        plan, rank = self._job.plan, self._job.ranks.rank
        own = plan.ranks[rank]
        num_processes = sum(1 + len(one.helpers) for one in plan.ranks)
        name = ProcessName(rank, None, own.threads, num_processes)
        self._begun, self._load = updates, BackgroundLoad()
        self._engine.start_recording([name._replace(threads=helper.threads) for helper in own.helpers])
        self._recorder = Recorder(name, self._engine.model.policy)
        self._recorder.start()

    def after_update(self, updates: int) -> None:
        if self._recorder is not None and updates >= self._begun + self._num_updates:
            self._finish(updates)

    def close(self) -> None:
        if self._recorder is not None:
            self._finish(self._engine.model.updates)

    def _finish(self, updates: int) -> None:
        """Helpers are idle once their recordings have arrived: then nothing disturbs the measurement of the peaks."""
        assert self._recorder is not None
        own, self._recorder = self._recorder.stop(), None
        load = self._load.share()
        recordings = [own, *self._engine.recordings()]
        peaks = measure_peaks(self._job.plan.learners(self._job.ranks.rank)[0])
        content = json.dumps({"recordings": recordings, "peaks": peaks, "load": load}).encode()
        parts = [json.loads(part) for part in self._job.ranks.gather_bytes([content])]
        if self._job.ranks.rank == 0:
            self._write(parts, updates - self._begun)

    def _write(self, parts: list[dict[str, Any]], num_updates: int) -> None:
        job, settings = self._job, self._job.settings
        spec = environments.describe(settings.env)
        facts = RunFacts(
            settings=settings,
            plan=job.plan,
            updates=num_updates,
            peaks=[None if part["peaks"] is None else Peaks(*part["peaks"]) for part in parts],
            background_load=parts[0]["load"],
            processor=cpu_model(),
            kernels=self._engine.model.policy.kernels,
        )
        profile = analyse([recording for part in parts for recording in part["recordings"]])
        findings = Findings(profile, facts, layer_works(settings.policy, spec))
        job.run.write_profile(page_text(findings), findings.figures(), trace_events(profile))
        say(f"{summary_text(findings)}\nprofile: {profile_page(job.run.path)}")
