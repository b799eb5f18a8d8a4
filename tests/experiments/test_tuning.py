"""`rlcluster tune`: its candidates, its choice, what it writes and what `train` says about it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from rlcluster.experiments.candidates import Candidate, algorithm_changes, host_layouts, layouts, name_of, variants
from rlcluster.experiments.tuned import Tried, hint, remember, way_of
from rlcluster.experiments.tuning import Race, Result, TuneRequest, settings_to_tune, simplest_of_the_fastest
from rlcluster.flags import flag_names
from rlcluster.networks.kernels.library import num_accumulators
from rlcluster.plan import RankInputs, Rates, forecast, local_placements, num_local_ranks, resolve
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings, setting_fields
from rlcluster.system.cores import Core, Cores
from rlcluster.system.signals import StopRequest

from conftest import rlcluster


def many_cores(number: int) -> Cores:
    return Cores(number, tuple(Core(core, core) for core in range(number)))


FOUR_CORES = many_cores(4)


def names(algorithm: str, cores: int, num_envs: int = 32) -> list[str]:
    settings = load_settings(algorithm, "parallel", None, {"env.num_envs": str(num_envs)})
    return [candidate.name for candidate in layouts(settings, cores)]


def test_ranks_times_threads_fill_the_cores_and_the_simplest_come_first() -> None:
    assert names("ppo", 4) == [
        "sequential, 1 thread",
        "sequential, 4 threads",
        "2 ranks, 2 threads each",
        "4 ranks, 1 thread each",
    ]
    assert names("ppo", 4, num_envs=2)[-1] == "2 ranks, 2 threads each"  # every rank needs an environment
    assert names("a3c", 2) == ["1 worker, 2 threads each", "2 workers, 1 thread each"]


def test_actors_have_cores_of_their_own_or_share_all() -> None:
    assert names("impala", 2) == [
        "1 actor, learner with 1 thread",
        "1 actor, learner with 2 threads",
        "2 actors, learner with 2 threads",
    ]


@pytest.mark.parametrize(
    ("cores", "pays", "batch", "chunk"),
    [
        (16, 8, 1024, 512),  # impala; 32 samples of a chunk for each thread
        (12, 8, 1024, 384),
        (64, 8, 1024, 1024),  # a minibatch has no more
        (96, 8, 4096, 2048),  # nor has a backward pass more work for threads
        (16, 8, 256, None),
        (8, 8, 1024, None),
        (12, 16, 1024, None),  # nature
        (24, 16, 1024, 768),
        (16, None, 1024, None),  # nothing limits torch's threads
    ],
)
def test_a_sequential_run_on_many_cores_is_tried_with_chunks_that_they_can_share(
    cores: int, pays: int | None, batch: int, chunk: int | None
) -> None:
    settings = load_settings("ppo", "sequential", None, {"training.batch_size": str(batch)})
    found = [one for one in layouts(settings, cores, pays) if "hardware.chunk_size" in one.flags]
    assert [one.flags["hardware.chunk_size"] for one in found] == ([] if chunk is None else [str(chunk)])
    for one in found:
        assert one.name == f"sequential, {cores} threads, chunks of {chunk}"
        flags = {key: value for key, value in one.flags.items() if key != "mode"}
        plan = forecast(load_settings("ppo", "sequential", None, flags), many_cores(cores))
        assert plan is not None
        assert plan.ranks[0].threads == cores
        most = num_accumulators(batch)
        assert num_accumulators(chunk or 0) == min(cores, most)


def test_variants_of_a_layout_with_larger_chunks_are_other_chunks_than_those_tried() -> None:
    settings = load_settings("ppo", "sequential")
    larger = next(one for one in layouts(settings, 16, 8) if "hardware.chunk_size" in one.flags)
    found = variants(settings, larger, 256)  # 256 is the default, which the plain layout has
    assert [one.name for one in found] == ["sequential, 16 threads, chunks of 1024"]
    assert [one.flags["hardware.chunk_size"] for one in found] == ["1024"]


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "a3c"])
def test_a_candidate_has_the_name_of_the_plan_that_its_settings_give(algorithm: str) -> None:
    for candidate in layouts(load_settings(algorithm, "parallel"), 4):
        flags = {key: value for key, value in candidate.flags.items() if key != "mode"}
        plan = forecast(load_settings(algorithm, candidate.flags["mode"], None, flags), FOUR_CORES)
        assert plan is not None
        assert name_of(plan) == candidate.name


def test_ranks_fill_every_host_and_helpers_have_one_rank_on_each() -> None:
    ppo = host_layouts(load_settings("ppo", "distributed"), 3, 4)
    assert [one.name for one in ppo] == [
        "3 hosts, on each 1 rank, 4 threads each",
        "3 hosts, on each 2 ranks, 2 threads each",
        "3 hosts, on each 4 ranks, 1 thread each",
    ]
    assert [one.flags["cluster.num_workers"] for one in ppo] == ["3", "6", "12"]
    impala = host_layouts(load_settings("impala", "distributed"), 3, 2)
    assert impala[-1].name == "3 hosts, on each 2 actors, learner with 2 threads"
    assert (impala[-1].flags["cluster.num_workers"], impala[-1].flags["parallel.workers_per_rank"]) == ("3", "2")
    for one in (*ppo, *impala):
        given = {key: value for key, value in one.flags.items() if key != "mode"}
        load_settings("ppo" if one in ppo else "impala", "distributed", None, given)
    # minibatches of 1024 samples: 85 for each of 12 ranks
    assert [one.flags.get("hardware.chunk_size") for one in variants(load_settings("ppo"), ppo[-1], 256)] == [
        "42",
        None,
    ]
    few = load_settings("ppo", "distributed", None, {"env.num_envs": "4"})
    assert len(host_layouts(few, 3, 4)) == 1  # every rank needs an environment


def test_variants_change_chunks_and_pinning_of_processes() -> None:
    settings = load_settings("ppo", "parallel")
    parallel, sequential = layouts(settings, 4)[-1], layouts(settings, 4)[0]
    # minibatches of 1024 samples: 256 for each of 4 ranks, which is one chunk
    assert [one.flags.get("hardware.chunk_size") for one in variants(settings, parallel, 256)] == ["128", None]
    assert variants(settings, parallel, 256)[-1].flags["parallel.pin_workers"] == "false"
    assert [one.flags["hardware.chunk_size"] for one in variants(settings, sequential, 256)] == ["128", "512"]


def test_ties_go_to_the_simpler_however_often_each_was_measured() -> None:
    first, second = (Candidate(name, {}) for name in "ab")
    results = [Result(first, [99.0, 98.0, 50.0]), Result(second, [100.0, 100.0])]
    assert simplest_of_the_fastest(results) == results[0]  # the median is within 2 %
    results[0].rates[:] = [97.0, 97.0, 97.0]
    assert simplest_of_the_fastest(results) == results[1]
    assert simplest_of_the_fastest([]) is None


def test_changes_of_the_algorithm_are_valid_settings_and_say_so() -> None:
    settings = load_settings("ppo", "parallel")  # 32 environments, 128 steps, batches of 1024
    found = algorithm_changes(settings, layouts(settings, 4)[-1])
    sizes = [(one.flags["env.num_envs"], one.flags["training.batch_size"]) for one in found]
    assert sizes == [("16", "1024"), ("64", "1024"), ("32", "512"), ("32", "2048"), ("64", "2048")]
    for one in found:
        assert one.changes_algorithm
        assert one.name.endswith("(changes the algorithm)")
        load_settings("ppo", "parallel", None, {key: value for key, value in one.flags.items() if key != "mode"})


def test_without_minibatches_only_the_number_of_environments_changes() -> None:
    settings = load_settings("a3c", "parallel", None, {"env.num_envs": "2"})
    two_workers = layouts(settings, 2)[-1]
    found = algorithm_changes(settings, two_workers)  # one environment cannot be shared by two workers
    assert [one.flags.get("env.num_envs") for one in found] == ["4"]
    assert all("training.batch_size" not in one.flags for one in found)


def test_environments_per_process_become_a_total_that_all_candidates_share(tmp_path: Path) -> None:
    request = TuneRequest(
        algorithm="ppo",
        config=None,
        flags={"parallel.num_workers": "2", "parallel.num_envs_per_worker": "3", "env.name": "CartPole-v1"},
        flag_names={field.key: flag_names(field)[0] for field in setting_fields()},
        minutes=1.0,
        start=time.perf_counter(),
        allow_algorithm_changes=False,
        output=tmp_path / "tuned.yaml",
        json=None,
    )
    settings = settings_to_tune(request, "parallel")
    assert settings.env.num_envs == 6
    with StopRequest() as stop:
        race = Race(request, settings, tmp_path, stop)
        for candidate in layouts(settings, 2):
            assert race.training(candidate)[0].env.num_envs == 6


def told(settings: Settings, rates: Rates | None = None) -> str | None:
    """What a run with these settings is told once it has a plan."""
    placements = local_placements(num_local_ranks(settings, FOUR_CORES))
    return hint(settings, resolve(settings, [RankInputs(FOUR_CORES, placement, rates) for placement in placements]))


def settings_for(algorithm: str = "ppo", mode: str = "sequential", **flags: str) -> Settings:
    return load_settings(algorithm, mode, None, {"policy.network": "impala", **flags})


def tried(name: str, rate: float, settings: Settings) -> Tried:
    plan = forecast(settings, FOUR_CORES)
    assert plan is not None
    return Tried(name, way_of(settings, plan), rate)


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


ONE_THREAD = {"hardware.num_threads": "1"}
TWO_RANKS = {**ONE_THREAD, "parallel.num_workers": "2"}


@pytest.mark.usefixtures("_own_cache")
def test_train_is_told_of_a_faster_setting_and_of_nothing_else(tmp_path: Path) -> None:
    one_thread, two_ranks = settings_for(**ONE_THREAD), settings_for(mode="parallel", **TWO_RANKS)
    assert told(one_thread) is None  # nothing is known
    candidates = [tried("one", 100.0, one_thread), tried("two", 150.0, two_ranks)]
    remember(one_thread, tmp_path / "tuned.yaml", "two", candidates)
    text = told(one_thread)
    assert text is not None
    assert "two was 1.50 times as fast; --config" in text
    assert told(two_ranks) is None
    assert told(settings_for(**{"hardware.num_threads": "3"})) is None  # not measured
    assert told(settings_for("a2c", **ONE_THREAD)) is None  # another algorithm


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize(
    ("key", "value"),
    [("policy.hidden_sizes", "512,512"), ("hardware.kernels", "torch"), ("env.frame_stack", "4")],
)
def test_what_was_tuned_for_other_work_says_nothing(key: str, value: str, tmp_path: Path) -> None:
    slow, fast = settings_for(**ONE_THREAD), settings_for(mode="parallel", **TWO_RANKS)
    remember(slow, tmp_path / "tuned.yaml", "fast", [tried("slow", 1.0, slow), tried("fast", 2.0, fast)])
    assert told(settings_for(**ONE_THREAD, **{key: value})) is None
    assert told(settings_for(**ONE_THREAD, **{"env.seed": "7", "output.keep_checkpoints": "1"})) is not None


@pytest.mark.usefixtures("_own_cache")
def test_a_run_that_has_the_tuned_chunk_size_is_told_nothing(tmp_path: Path) -> None:
    ranks = settings_for(mode="parallel", **TWO_RANKS)
    chunks = settings_for(mode="parallel", **TWO_RANKS, **{"hardware.chunk_size": "128"})
    free = settings_for(mode="parallel", **TWO_RANKS, **{"parallel.pin_workers": "false"})
    names = ("ranks", "chunks", "free")
    rates = (100.0, 120.0, 90.0)
    candidates = [tried(*one) for one in zip(names, rates, (ranks, chunks, free), strict=True)]
    remember(ranks, tmp_path / "tuned.yaml", "chunks", candidates)
    assert told(chunks) is None
    assert "chunks was 1.20 times as fast" in (told(ranks) or "")
    assert "chunks was 1.33 times as fast" in (told(free) or "")


@pytest.mark.usefixtures("_own_cache")
def test_impala_is_compared_once_its_rates_have_given_it_a_plan(tmp_path: Path) -> None:
    default = settings_for("impala", "parallel")
    assert forecast(default, FOUR_CORES) is None
    three, two = (
        settings_for("impala", "parallel", **{"parallel.num_workers": str(count), "hardware.num_threads": threads})
        for count, threads in ((1, "3"), (2, "4"))
    )
    remember(default, tmp_path / "tuned.yaml", "two", [tried("three", 100.0, three), tried("two", 150.0, two)])
    # Apart, one actor keeps three threads busy: min(2000, 2100); together it would be 1970.
    assert "two was 1.50 times as fast" in (told(default, Rates(act=2000, learn=700)) or "")


@pytest.mark.slow
def test_tuning_writes_a_file_that_train_takes_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own, tuned, figures = tmp_path / "own.yaml", tmp_path / "tuned.yaml", tmp_path / "figures.json"
    own.write_text("env: {name: CartPole-v1, num_envs: 8}\ntraining: {n_steps: 32}\n")
    result = rlcluster("tune", "ppo", "--config", own, "--minutes", "0.5", "--output", tuned, "--json", figures)
    assert result.returncode == 0, result.stderr
    written, found = yaml.safe_load(tuned.read_text()), json.loads(figures.read_text())
    assert written["mode"] in ("sequential", "parallel")
    assert found["best"] in result.stdout
    assert found["steps_per_second"] > 0
    settings = load_settings("ppo", None, [own, tuned])
    assert (settings.env.num_envs, settings.hardware.num_threads) == (8, written["hardware"]["num_threads"])
    remembered = json.loads((tmp_path / "cache" / "rlcluster" / "tuned.json").read_text())
    (known,) = remembered.values()
    assert known["name"] == found["best"]
    for one in known["tried"]:  # all were much slower: then the best has one faster than itself
        one["steps_per_second"] /= 2
    (tmp_path / "cache" / "rlcluster" / "tuned.json").write_text(json.dumps(remembered))
    run = rlcluster("train", *("--config", own, "--config", tuned), "--total-updates", "1", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert f"{found['best']} was 2.00 times as fast; --config {tuned}" in run.stdout


@pytest.mark.slow
def test_changes_of_the_algorithm_are_labelled_in_table_file_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tuned, figures = tmp_path / "tuned.yaml", tmp_path / "figures.json"
    options = ("--env", "CartPole-v1", "--num-envs", "8", "--n-steps", "32", "--duration", "2h")
    more = ("--allow-algorithm-changes", "--minutes", "2", "--output", tuned, "--json", figures)
    result = rlcluster("tune", "a2c", *options, *more)
    assert result.returncode == 0, result.stderr
    assert "ignored, because tune decides it: --duration 2h" in result.stdout
    assert "16 environments (changes the algorithm)" in result.stdout
    found = json.loads(figures.read_text())
    assert found["changes_algorithm"] == ("changes the algorithm" in found["best"])
    assert found["changes_algorithm"] == ("CHANGE THE ALGORITHM" in tuned.read_text())
