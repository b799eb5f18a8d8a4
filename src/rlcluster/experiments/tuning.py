"""`rlcluster tune`: what is fastest here, without changing the result. Candidates take turns of one update; after some
rounds the slower half is dropped (successive halving). Then variants of the best one follow. Ties go to the simpler.
Started on several hosts of an allocation, it tunes runs over all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from rlcluster import environments, plan
from rlcluster.experiments.candidates import Candidate, algorithm_changes, host_layouts, layouts, variants
from rlcluster.experiments.host_turns import Hosts
from rlcluster.experiments.tuned import TIE, Tried, remember, way_of
from rlcluster.experiments.turns import Interrupted, LocalProcesses, PausedRun, Processes
from rlcluster.networks import policy
from rlcluster.settings.loading import Files, files_of, flatten, load_settings
from rlcluster.settings.reading import read_file
from rlcluster.settings.schema import BUDGETS, Settings
from rlcluster.system import cores, machine
from rlcluster.system.atomic_file import write_atomically, write_json
from rlcluster.system.console import clock_text, counted, say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.launcher import Placement, launched
from rlcluster.system.scratch import scratch_folder
from rlcluster.system.signals import StopRequest

ROUNDS_PER_HALVING = 2
FINAL_ROUNDS = 4  # of the last two
ENDLESS = ("--total-updates", "100000000", "--checkpoint-seconds", "1000000")
PATIENT = ("--timeout-seconds", "1000000")  # the pauses are long
LATENESS = 1.1  # times the given minutes: then a turn is broken off
DECIDED_HERE = (
    *("parallel.num_workers", "parallel.workers_per_rank", "cluster.num_workers", "hardware.num_threads"),
    "output.output_dir",
    *(f"training.{budget}" for budget in BUDGETS),
)
PER_PROCESS = "parallel.num_envs_per_worker"  # with other numbers of processes it would change the algorithm


class TuneRequest(NamedTuple):
    """The parsed command line. `flags` maps "section.name" to a value, `flag_names` to the flag's name."""

    algorithm: str | None
    config: Files
    flags: Mapping[str, str]
    flag_names: Mapping[str, str]
    minutes: float
    start: float  # of the command, by time.perf_counter
    allow_algorithm_changes: bool
    output: Path
    json: Path | None


class Result(NamedTuple):
    """A candidate and its steps per second in each turn."""

    candidate: Candidate
    rates: list[float]

    @property
    def rate(self) -> float:
        return median(self.rates)


def tune_command(request: TuneRequest) -> int:
    """Prints a table and writes the best settings; returns the exit code."""
    placement = launched()
    if placement is not None and placement.world_size > 1:
        return _tune_over_hosts(request, placement)
    settings = settings_to_tune(request, "parallel")
    with StopRequest(ignores_second_signal=True) as stop, scratch_folder() as folder:
        race = Race(request, settings, folder, stop)
        pays = policy.threads_that_pay(settings.policy, settings.hardware, environments.describe(settings.env))
        best = _best_of(race, layouts(settings, cores.observe().physical, pays), request, settings)
    code = _report(request, race, best, stop)
    if best is not None and code == 0:
        _remember(race, best, request.output)
    return code


def _remember(race: Race, best: Result, file: Path) -> None:
    """Those of one algorithm can be compared: the best, and what has the numbers of environments and samples given."""
    tried = []
    for one in (one for one in race.results if one.candidate.name not in race.undecided):
        settings, _ = race.training(one.candidate)
        resolved = plan.forecast(settings, cores.observe())
        if resolved is not None and (one == best or not one.candidate.changes_algorithm):
            tried.append(Tried(one.candidate.name, way_of(settings, resolved), one.rate))
    spec = environments.describe(race.settings.env)
    network = policy.choose_network(race.settings.policy, spec)
    chosen = race.settings.policy.model_copy(update={"network": network})
    remember(race.settings.model_copy(update={"policy": chosen}), file, best.candidate.name, tried)


def _tune_over_hosts(request: TuneRequest, placement: Placement) -> int:
    """The first host decides and reports. Nothing is remembered: it would not hold for one machine alone."""
    settings = settings_to_tune(request, "distributed", placement.rank == 0)
    with StopRequest(ignores_second_signal=True) as stop, scratch_folder() as folder:
        hosts = Hosts(placement, (settings.cluster.master_addr, settings.cluster.master_port))
        if not hosts.is_first:
            hosts.follow()
            return 0 if stop.signal_number is None else 128 + stop.signal_number
        try:
            race = Race(request, settings, Path(folder), stop, hosts)
            best = _best_of(race, host_layouts(settings, hosts.size, min(hosts.cores_of_each)), request, settings)
        finally:
            hosts.command("over", 0)
    return _report(request, race, best, stop)


def _best_of(race: Race, candidates: Sequence[Candidate], request: TuneRequest, settings: Settings) -> Result | None:
    """Of these, then of variants of the best one, then of changes of the algorithm if they are allowed."""
    spec = environments.describe(settings.env)
    chunk_size = policy.make_policy(settings.policy, spec, 0, settings.hardware.kernels).chunk_size
    best = race.run(candidates)
    if best is not None:
        best = race.refine(best, variants(settings, best.candidate, chunk_size))
    if best is not None and request.allow_algorithm_changes:
        best = race.refine(best, algorithm_changes(settings, best.candidate))
    return best


def _report(request: TuneRequest, race: Race, best: Result | None, stop: StopRequest) -> int:
    """Table, file and figures; returns the exit code."""
    if stop.signal_number is not None and len(race.results) < 2:
        return 128 + stop.signal_number  # nothing was compared
    if best is None:
        raise UserError(
            f"tune: --minutes {request.minutes:g} are too few for two updates; give more minutes", EXIT_RUN_FAILED
        )
    say(_table(race.results, best))
    if race.untried and stop.signal_number is None:
        say(f"not tried within --minutes {request.minutes:g}: {'; '.join(race.untried)}")
    if race.undecided and stop.signal_number is None:
        say(f"too few updates within --minutes {request.minutes:g} to be chosen: {'; '.join(race.undecided)}")
    _write(request, race.settings, best, race.results)
    return 0 if stop.signal_number is None else 128 + stop.signal_number


def settings_to_tune(request: TuneRequest, mode: str, is_told: bool = True) -> Settings:
    """As given, without what this command decides itself; with the number of environments of all processes."""
    ignored = [f"{request.flag_names[key]} {request.flags[key]}" for key in DECIDED_HERE if key in request.flags]
    if ignored and is_told:
        say(f"ignored, because tune decides it: {', '.join(ignored)}")
    needed = ["hardware.num_threads", PER_PROCESS]  # by some combinations of settings
    needed.append("parallel.num_workers" if mode == "parallel" else "parallel.workers_per_rank")
    flags = {key: value for key, value in request.flags.items() if key in needed or key not in DECIDED_HERE}
    return load_settings(request.algorithm, mode, request.config, flags)


class Race:
    """Candidates that take turns until the time is over."""

    def __init__(
        self, request: TuneRequest, settings: Settings, folder: Path, stop: StopRequest, hosts: Hosts | None = None
    ) -> None:
        """With `hosts`, every run is one over all of them."""
        self._request, self.settings, self._folder, self._stop, self._hosts = request, settings, folder, stop, hosts
        self._num_started = 0
        self._deadline = request.start + 60 * request.minutes
        self._latest = request.start + LATENESS * 60 * request.minutes
        self._open: list[PausedRun] = []
        self._start_seconds, self._turn_seconds = 0.0, 0.0  # of the latest start with its first updates, and turn
        self._stop_seconds = 0.0  # the longest of a run so far
        self.results: list[Result] = []
        self.untried: list[str] = []  # names, for want of time
        self.undecided: list[str] = []  # that have begun, but had too few updates to be chosen

    def is_over(self, seconds: float = 0.0) -> bool:
        """True if what takes so many seconds would end too late, with all runs stopped, or a signal has arrived."""
        return self._stop.requested or time.perf_counter() + seconds + self._stopping_seconds > self._deadline

    @property
    def _stopping_seconds(self) -> float:
        """Of all open runs, one after the other."""
        return len(self._open) * self._stop_seconds

    def run(self, candidates: Sequence[Candidate], rounds: int = 0) -> Result | None:
        """The best of them, the simplest of those that are as fast; None if none finished an update. No more of them
        are started than can have so many rounds.
        """
        with ExitStack() as opened:
            alive = self._started(candidates, rounds, opened)
            while len(alive) > 1 and not self.is_over():
                self._say_progress([result for result, _ in alive])
                rounds = FINAL_ROUNDS if len(alive) == 2 else ROUNDS_PER_HALVING
                if not all(self._round(alive) for _ in range(rounds)) or len(alive) == 2:
                    break
                fastest = sorted(alive, key=lambda one: -one[0].rate)[: (len(alive) + 1) // 2]
                for result, run in alive:
                    if (result, run) not in fastest:
                        self._close(run)
                alive = [one for one in alive if one in fastest]
        return simplest_of_the_fastest([result for result, _ in alive])

    def refine(self, best: Result, others: Sequence[Candidate]) -> Result:
        """The best of what was best so far and some more. One that wins has had whole rounds against the best, which is
        started again for them; if the time ends before, all that is known from before remains.
        """
        known = list(self.results)
        found = self.run([best.candidate, *others], ROUNDS_PER_HALVING) if others else None
        again = next((one for one in self.results if one.candidate == best.candidate), best)
        if found is not None and min(len(found.rates), len(again.rates)) > ROUNDS_PER_HALVING:
            return found
        names = [one.candidate for one in known]
        self.undecided += [one.candidate.name for one in self.results if one.candidate not in names]
        self.results = known + [one for one in self.results if one.candidate not in names]
        return best

    def _started(
        self, candidates: Sequence[Candidate], rounds: int, opened: ExitStack
    ) -> list[tuple[Result, PausedRun]]:
        """Each with one update to warm up, and one that counts."""
        alive: list[tuple[Result, PausedRun]] = []
        for number, candidate in enumerate(candidates):
            if not self.is_over(self._seconds_for_one_more(len(alive), rounds)):
                say(f"starting: {candidate.name}")
                result = self._start(candidate, opened)
                if result is not None:
                    self.results = [one for one in self.results if one.candidate != candidate] + [result[0]]
                    alive.append(result)
                    continue
            known = [one.candidate for one in self.results]
            self.untried += [one.name for one in candidates[number:] if one not in known]
            break
        return alive

    def _seconds_for_one_more(self, num_alive: int, rounds: int) -> float:
        """To start it, and for the rounds of all; rounds need two."""
        size = max(num_alive + 1, 2 if rounds else 1)
        return (size - num_alive) * self._start_seconds + rounds * size * self._turn_seconds

    def _start(self, candidate: Candidate, opened: ExitStack) -> tuple[Result, PausedRun] | None:
        """None if the time was over before its second update."""
        start = time.perf_counter()
        settings, arguments = self.training(candidate)
        self._num_started += 1
        path = self._folder / f"run_{self._num_started}"
        arguments += ["--output-dir", str(path)]
        processes: Processes = (
            LocalProcesses(arguments)
            if self._hosts is None
            else self._hosts.start(arguments, int(candidate.flags["cluster.num_workers"]))
        )
        run = PausedRun(path, settings, processes, self._stop)
        self._open.append(run)
        opened.callback(self._close, run)
        try:
            self._turn(run)
            result = Result(candidate, [self._turn(run)])
        except Interrupted:
            return None
        self._start_seconds = time.perf_counter() - start
        return result, run

    def _turn(self, run: PausedRun) -> float:
        """Its steps per second. Raises Interrupted if it takes too long."""
        rate = run.turn(self._latest - self._stopping_seconds)
        self._turn_seconds = run.turn_seconds
        return rate

    def _close(self, run: PausedRun) -> None:
        """May be called again."""
        if run in self._open:
            start = time.perf_counter()
            run.close()
            self._open.remove(run)
            self._stop_seconds = max(self._stop_seconds, time.perf_counter() - start)

    def _round(self, alive: Sequence[tuple[Result, PausedRun]]) -> bool:
        """One turn of each; False if the time is over before its end."""
        for result, run in alive:
            if self.is_over(run.turn_seconds):
                return False
            try:
                result.rates.append(self._turn(run))
            except Interrupted:
                return False
        return True

    def _say_progress(self, alive: Sequence[Result]) -> None:
        best = max(alive, key=lambda one: one.rate)
        seconds = clock_text(max(0.0, self._deadline - time.perf_counter()))
        so_far = f"best so far: {best.candidate.name}, {best.rate:,.0f} steps/s"
        say(f"{counted(len(alive), 'candidate')} take turns; {so_far}; time left: {seconds}")

    def training(self, candidate: Candidate) -> tuple[Settings, list[str]]:
        """Its settings, and the arguments of `rlcluster train`."""
        request = self._request
        mode = candidate.flags["mode"]
        flags = {**_kept_flags(request), "env.num_envs": str(self.settings.env.num_envs)}
        flags |= {key: value for key, value in candidate.flags.items() if key != "mode"}
        if mode == "sequential":
            flags = {key: value for key, value in flags.items() if key.split(".")[0] not in ("parallel", "cluster")}
        settings = load_settings(request.algorithm, mode, request.config, flags)
        arguments = [settings.algorithm, "--mode", mode]
        arguments += [part for file in files_of(request.config) for part in ("--config", str(file))]
        arguments += [f"{request.flag_names[key]}={value}" for key, value in flags.items()]
        return settings, [*arguments, *ENDLESS, *(PATIENT if mode != "sequential" else ())]


def simplest_of_the_fastest(finalists: Sequence[Result]) -> Result | None:
    """`finalists` are in the order of their simplicity."""
    best = max((one.rate for one in finalists), default=0.0)
    return next((one for one in finalists if one.rate >= TIE * best), None)


def _kept_flags(request: TuneRequest) -> dict[str, str]:
    """Without what this command decides itself."""
    return {key: value for key, value in request.flags.items() if key not in (*DECIDED_HERE, PER_PROCESS)}


def _counts_per_process(request: TuneRequest) -> bool:
    """True if the user gives the environments of each process, not of all."""
    files = [flatten(read_file(file)) for file in files_of(request.config)]
    return PER_PROCESS in request.flags or any(PER_PROCESS in given for given in files)


def _table(results: Sequence[Result], best: Result) -> str:
    lines = [f"{'':2}{'candidate':52}{'steps/s':>10}{'lowest to highest':>22}{'updates':>9}"]
    for one in sorted(results, key=lambda one: -one.rate):
        mark = "*" if one.candidate == best.candidate else " "
        interval = f"{min(one.rates):,.0f} to {max(one.rates):,.0f}"
        lines.append(f"{mark} {one.candidate.name:52}{one.rate:10,.0f}{interval:>22}{len(one.rates):9}")
    return "\n".join(lines)


def _write(request: TuneRequest, settings: Settings, best: Result, results: Sequence[Result]) -> None:
    flags = dict(best.candidate.flags)
    if _counts_per_process(request):
        flags.setdefault("env.num_envs", str(settings.env.num_envs))
    speed = f"{best.rate:,.0f} steps/s ({counted(len(best.rates), 'update')})"
    note = f"# rlcluster tune {settings.algorithm}: {speed} on {machine.cpu_model()}\n"
    if best.candidate.changes_algorithm:
        note += "# env.num_envs and training.batch_size CHANGE THE ALGORITHM: the result differs, not only the speed.\n"
    write_atomically(request.output, (note + yaml.safe_dump(_sections(flags), sort_keys=False)).encode())
    say(f"{best.candidate.name}: {request.output}; use it beside others: --config a.yaml --config {request.output}")
    rates = {one.candidate.name: one.rate for one in results}
    if request.json is not None:
        names = {name: re.sub(r"[^a-z0-9]+", "_", name).strip("_") for name in rates}
        figures = {f"{names[name]}_steps_per_second": rate for name, rate in rates.items()}
        found = {"best": best.candidate.name, "changes_algorithm": best.candidate.changes_algorithm}
        write_json(request.json, {**found, "steps_per_second": best.rate, **figures})


def _sections(flags: Mapping[str, str]) -> dict[str, Any]:
    """{"mode": "parallel", "env.num_envs": "8"} as {"mode": "parallel", "env": {"num_envs": 8}}."""
    sections: dict[str, Any] = {}
    for key, value in flags.items():
        section, _, name = key.partition(".")
        if name:
            sections.setdefault(section, {})[name] = yaml.safe_load(value)
        else:
            sections[section] = value
    return sections
