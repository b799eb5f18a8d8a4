"""One run on disk: its files, its one writer, and what a resumed run finds again."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlcluster.runs.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from rlcluster.runs.checkpoints import (
    find_checkpoint,
    latest_run,
    newest_checkpoint,
    refuse_without_checkpoint,
    step_checkpoints,
)
from rlcluster.runs.evaluations import write_evaluation
from rlcluster.runs.fields import TAGS
from rlcluster.runs.files import default_path
from rlcluster.runs.metrics import read_metrics
from rlcluster.runs.status import read_state, write_state
from rlcluster.runs.writer import RunDirectory, open_run
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_STORAGE, UserError

from conftest import disk_full_after

STEPS_PER_UPDATE = 128


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def settings_for(folder):
    """Settings of a run in `folder`."""

    def make(**output: object) -> Settings:
        flags = {f"output.{name}": value for name, value in {"output_dir": str(folder), **output}.items()}
        return load_settings(flags={"env.name": "CartPole-v1", **flags})

    return make


def content_at(update: int) -> dict[str, object]:
    """What a checkpoint after `update` updates must hold for the run directory."""
    return {
        "settings": load_settings(flags={"env.name": "CartPole-v1"}).to_yaml(),
        "learner": {
            "updates": update,
            "steps_global": update * STEPS_PER_UPDATE,
            "weight": torch.full((4,), float(update)),
        },
    }


def record_at(update: int) -> dict[str, object]:
    return {"update": update, "steps_global": update * STEPS_PER_UPDATE, "fps": 100.0 + update}


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-50])


def in_mode(settings: Settings, mode: str) -> Settings:
    return settings.model_copy(update={"mode": mode})


# Layout


def test_a_run_has_the_promised_layout(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.write_machine_facts({"cpu_model": "test"})
        run.log(record_at(1))
        run.save(content_at(1))
        run.save(content_at(2), final=True)
        run.write_summary({"total_updates": 2})
    assert [name.partition(".out.tfevents.")[0] for name in files_in(folder)] == [
        "benchmark_metrics.json",
        "checkpoints",
        "config.yaml",
        "events",
        "logs",
        "machine.json",
        "run_state.json",
    ]
    assert files_in(folder / "checkpoints") == ["ppo_sequential_final.pt", "ppo_sequential_step_128.pt"]
    assert files_in(folder / "logs") == ["PPO_Sequential"]
    assert files_in(folder / "logs" / "PPO_Sequential") == ["metrics.jsonl"]


def test_what_is_written_can_be_read(settings_for, folder):
    settings = settings_for()
    with RunDirectory.create(settings) as run:
        assert run.path == folder
        assert run.restored is None
        run.write_machine_facts({"cpu_model": "test", "cores": 2})
        run.log(record_at(1))
        run.log({**record_at(2), "episode_reward_mean": None})
        final = run.save(content_at(2), final=True)
        run.write_summary({"total_updates": 2, "final_reward": None})
    expected = load_settings(flags={"env.name": "CartPole-v1"}).to_dict()  # without the place, to run again elsewhere
    assert yaml.safe_load((folder / "config.yaml").read_text()) == expected
    assert json.loads((folder / "machine.json").read_text()) == {"cpu_model": "test", "cores": 2}
    assert json.loads((folder / "benchmark_metrics.json").read_text()) == {"total_updates": 2, "final_reward": None}
    metrics = read_metrics(folder / "logs" / "PPO_Sequential" / "metrics.jsonl")
    assert metrics == [record_at(1), {**record_at(2), "episode_reward_mean": None}]
    assert load_checkpoint(final).content["learner"]["updates"] == 2


def test_a_record_is_on_disk_as_soon_as_it_is_logged(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        assert read_metrics(folder / "logs" / "PPO_Sequential" / "metrics.jsonl") == [record_at(1)]


def test_checkpoints_and_logs_may_be_kept_elsewhere(settings_for, folder, tmp_path):
    settings = settings_for(checkpoint_dir=str(tmp_path / "c"), log_dir=str(tmp_path / "l"))
    with RunDirectory.create(settings) as run:
        run.log(record_at(1))
        run.save(content_at(1))
    assert files_in(folder) == ["config.yaml", "run_state.json"]
    assert files_in(tmp_path / "c") == ["ppo_sequential_step_128.pt"]
    assert files_in(tmp_path / "l" / "PPO_Sequential") == ["metrics.jsonl"]
    assert len(files_in(tmp_path / "l")) == 2  # and TensorBoard's events


@pytest.mark.parametrize(
    ("env", "name"),
    [("procgen-coinrun-v0", "coinrun"), ("coinrun", "coinrun"), ("ALE/Pong-v5", "ALE-Pong-v5")],
)
def test_a_run_without_a_name_is_named_by_algorithm_game_and_time(env, name):
    path = default_path(load_settings("a2c", flags={"env.name": env}))
    assert re.fullmatch(rf"runs/a2c_sequential_{name}_\d{{8}}-\d{{6}}", str(path))


def test_runs_without_a_name_that_start_in_one_second_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda layout: "20260131-235959")
    settings = load_settings("a2c", flags={"env.name": "coinrun"})
    for expected in ("", "-2", "-3"):
        path = default_path(settings)
        assert path == Path(f"runs/a2c_sequential_coinrun_20260131-235959{expected}")
        path.mkdir(parents=True)


# Refusing what exists


def test_an_existing_run_is_refused_and_left_as_it_was(settings_for, folder):
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    message = f"output.output_dir={folder} exists; it is not a run: choose another --output-dir"
    with pytest.raises(UserError, match=re.escape(message)):
        RunDirectory.create(settings_for())
    assert files_in(folder) == ["notes.txt"]


def test_an_empty_directory_is_taken(settings_for, folder):
    folder.mkdir()
    with RunDirectory.create(settings_for()):
        pass
    assert "config.yaml" in files_in(folder)


def test_a_file_in_place_of_the_directory_is_refused(settings_for, folder):
    folder.write_text("mine")
    with pytest.raises(UserError, match="exists; it is not a run"):
        RunDirectory.create(settings_for())
    assert folder.read_text() == "mine"


@pytest.mark.parametrize(("setting", "kind"), [("checkpoint_dir", "checkpoints"), ("log_dir", "the metrics")])
def test_checkpoints_and_metrics_of_another_run_are_refused(settings_for, tmp_path, setting, kind):
    elsewhere = {setting: str(tmp_path / "shared")}
    with RunDirectory.create(settings_for(**elsewhere)) as run:
        run.save(content_at(1))
    with pytest.raises(UserError, match=f"output.{setting}=.* holds {kind} of a run"):
        RunDirectory.create(settings_for(output_dir=str(tmp_path / "another"), **elsewhere))
    assert not (tmp_path / "another").exists()


def test_a_directory_that_cannot_be_made_is_a_storage_error(settings_for, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Not a directory") as caught:
        RunDirectory.create(settings_for(output_dir=str(tmp_path / "file" / "run")))
    assert caught.value.exit_code == EXIT_STORAGE == 74


# One writer


def test_a_second_writer_is_refused_while_the_first_holds_the_run(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
        with pytest.raises(UserError, match=f"{folder} is being written by another process; wait for it"):
            RunDirectory.resume(settings_for())
        run.log(record_at(2))  # the first is not disturbed
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == 1


@pytest.mark.slow
def test_a_writer_that_dies_silently_releases_the_run(settings_for, folder):
    script = """
import os, sys
from rlcluster.settings.loading import load_settings
from rlcluster.runs.writer import RunDirectory
run = RunDirectory.create(load_settings(file=sys.argv[1]))
run.save({"settings": run.settings.to_yaml(), "learner": {"updates": 1, "steps_global": 128}})
os._exit(9)
"""
    file = folder.parent / "settings.yaml"
    file.write_text(settings_for().to_yaml())
    assert subprocess.run([sys.executable, "-c", script, str(file)], check=False).returncode == 9
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == 1


def test_a_run_that_could_not_be_resumed_is_not_held(settings_for, folder):
    with RunDirectory.create(settings_for()):
        pass
    for _ in range(2):
        with pytest.raises(UserError, match="there is no usable checkpoint"):
            RunDirectory.resume(settings_for())


# Checkpoints


def test_only_the_newest_periodic_checkpoints_are_kept(settings_for, folder):
    with RunDirectory.create(settings_for(keep_checkpoints=2)) as run:
        for update in (8, 9, 10, 11):  # 1024, 1152, 1280, 1408: by number, not by name
            assert run.save(content_at(update)).exists()
    kept = step_checkpoints(folder / "checkpoints", "ppo")
    assert [path.name for path in kept] == ["ppo_sequential_step_1280.pt", "ppo_sequential_step_1408.pt"]


def test_periodic_checkpoints_are_ordered_by_number_and_foreign_files_are_passed_over(tmp_path):
    names = ["ppo_sequential_step_90.pt", "ppo_sequential_step_1000.pt", "ppo_sequential_step_200.pt"]
    for name in [*names, "ppo_sequential_step_x.pt", "a2c_sequential_step_5.pt", "ppo_sequential_final.pt"]:
        (tmp_path / name).touch()
    found = [path.name for path in step_checkpoints(tmp_path, "ppo")]
    assert found == ["ppo_sequential_step_90.pt", "ppo_sequential_step_200.pt", "ppo_sequential_step_1000.pt"]


def test_the_final_checkpoint_does_not_count_among_those_kept_and_is_never_dropped(settings_for, folder):
    with RunDirectory.create(settings_for(keep_checkpoints=1)) as run:
        run.save(content_at(1), final=True)
        for update in (2, 3, 4):
            run.save(content_at(update))
    assert files_in(folder / "checkpoints") == ["ppo_sequential_final.pt", "ppo_sequential_step_512.pt"]


@pytest.mark.parametrize(("final", "periodic", "furthest"), [(3, [1, 2], 3), (2, [1, 3], 3), (None, [9, 10], 10)])
def test_a_resumed_run_starts_from_the_furthest_checkpoint(settings_for, final, periodic, furthest):
    with RunDirectory.create(settings_for()) as run:
        for update in periodic:
            run.save(content_at(update))
        if final is not None:
            run.save(content_at(final), final=True)
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == furthest
        assert run.restored["learner"]["weight"].tolist() == [furthest] * 4


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(settings_for, folder, capsys):
    with RunDirectory.create(settings_for()) as run:
        files = []
        for update in (1, 2, 3):
            run.log(record_at(update))
            files.append(run.save(content_at(update)))
    damage(files[2])
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == 2
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {files[2]}: is not a whole checkpoint")
    assert warning.endswith("Falling back to an earlier checkpoint.\n")
    assert warning.count("\n") == 1


def test_a_damaged_final_checkpoint_falls_back_to_a_periodic_one(settings_for, capsys):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
        damage(run.save(content_at(2), final=True))
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == 1
    assert "ppo_sequential_final.pt" in capsys.readouterr().err


def test_a_whole_checkpoint_is_taken_in_silence(settings_for, capsys):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        run.save(content_at(1))
    with RunDirectory.resume(settings_for()):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_run_with_damaged_checkpoints_only_cannot_be_resumed(settings_for, folder, capsys):
    with RunDirectory.create(settings_for()) as run:
        for update in (1, 2):
            damage(run.save(content_at(update)))
    names = "ppo_sequential_step_128.pt.damaged, ppo_sequential_step_256.pt.damaged"
    expected = (
        f"--resume: there is no usable checkpoint in {folder / 'checkpoints'} (damaged: {names}); start a new run in "
        "another --output-dir"
    )
    for num_warnings, refuse in ((2, newest_checkpoint), (0, newest_checkpoint), (0, refuse_without_checkpoint)):
        with pytest.raises(UserError, match=re.escape(expected)) as caught:
            refuse(folder / "checkpoints", "ppo")
        assert caught.value.exit_code == EXIT_STORAGE
        assert capsys.readouterr().err.count("warning: ") == num_warnings
    why = f"there is no usable checkpoint in {folder / 'checkpoints'} (damaged: {names})"
    for path in (folder, folder / "checkpoints"):
        with pytest.raises(UserError, match=re.escape(f"--checkpoint {path}: {why}; give another run")) as caught:
            find_checkpoint(path)
        assert caught.value.exit_code == EXIT_STORAGE


def test_a_reader_falls_back_like_a_resumed_run_but_changes_nothing(settings_for, folder, capsys):
    with RunDirectory.create(settings_for()) as run:
        files = [run.save(content_at(update)) for update in (1, 2)]
        files.append(run.save(content_at(3), final=True))
    for file in files[1:]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = files_in(folder / "checkpoints")
    assert find_checkpoint(folder).path == files[0]
    assert capsys.readouterr().err.count("Falling back to an earlier checkpoint") == 2
    damage(files[0])
    with pytest.raises(UserError, match="all its checkpoints are damaged"):
        find_checkpoint(folder)
    assert files_in(folder / "checkpoints") == before


@pytest.mark.parametrize(
    "broken",
    [
        {"learner": {}},
        {"learner": {"steps_global": 256}},
        {"learner": {"steps_global": "many", "updates": 1}},
        {"settings": "env: {flavour: 3}"},
        {"settings": "a: [b"},
        {"settings": None},
    ],
    ids=["no step", "no update", "no number", "unknown settings", "no yaml", "no settings"],
)
def test_a_whole_checkpoint_that_does_not_fit_is_refused_in_one_line_and_stays(settings_for, folder, broken):
    with RunDirectory.create(settings_for()) as run:
        file = run.save(content_at(2))
    save_checkpoint(file, {**content_at(2), **broken})
    with pytest.raises(CheckpointError, match="was written by another version of rlcluster") as caught:
        RunDirectory.resume(settings_for())
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith("; move it away, and --resume takes the one before")
    assert file.exists()


def test_a_checkpoint_that_the_run_finds_damaged_inside_is_set_aside_too(settings_for, folder):
    def check(checkpoint: Checkpoint) -> None:
        if checkpoint.steps_global == 2 * STEPS_PER_UPDATE:
            raise CheckpointError(checkpoint.path, "holds a damaged simulator")

    with RunDirectory.create(settings_for()) as run:
        for update in (1, 2):
            run.save(content_at(update))
    with RunDirectory.resume(settings_for(), check=check) as run:
        assert run.restored["learner"]["updates"] == 1
    assert files_in(folder / "checkpoints")[-1].endswith("_step_256.pt.damaged")


def test_a_new_checkpoint_is_not_dropped_in_favour_of_a_damaged_one(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
        damage(run.save(content_at(9)))
    with RunDirectory.resume(settings_for(keep_checkpoints=1)) as run:
        saved = run.save(content_at(2))
    assert saved.exists()
    with RunDirectory.resume(settings_for()) as run:
        assert run.restored["learner"]["updates"] == 2


# Metrics of a resumed run


def test_metrics_beyond_the_checkpoint_are_dropped_on_resume(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        for update in (1, 2, 3, 4):
            run.log(record_at(update))
            if update == 2:
                run.save(content_at(2))
    with RunDirectory.resume(settings_for()) as run:
        run.log({**record_at(3), "fps": 7.0})
    records = read_metrics(folder / "logs" / "PPO_Sequential" / "metrics.jsonl")
    assert records == [record_at(1), record_at(2), {**record_at(3), "fps": 7.0}]


@pytest.mark.parametrize("tail", [b'{"update": 3, "steps_gl', b"\x00" * 20, b"\xff\xfe", b"\n"])
def test_a_broken_end_of_the_metrics_is_dropped_on_resume(settings_for, folder, tail):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        run.log(record_at(2))
        run.save(content_at(2))
    metrics = folder / "logs" / "PPO_Sequential" / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(tail)
    with RunDirectory.resume(settings_for()) as run:
        run.log(record_at(3))
    assert read_metrics(metrics) == [record_at(1), record_at(2), record_at(3)]


def test_the_settings_of_the_resumed_run_are_written_anew(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
    with RunDirectory.resume(settings_for(keep_checkpoints=7)):
        pass
    assert load_settings(file=folder / "config.yaml").output.keep_checkpoints == 7


# A full disk


def test_a_full_disk_while_logging_is_a_storage_error_in_one_line(settings_for):
    with pytest.raises(UserError, match=r"PPO_Sequential cannot .*; free some space, then start again in") as caught:  # noqa: SIM117
        with RunDirectory.create(settings_for()) as run, disk_full_after(4000):
            for update in range(1, 200):
                run.log({**dict.fromkeys(TAGS, 1 / 3), **record_at(update)})
    assert caught.value.exit_code == EXIT_STORAGE
    assert "\n" not in str(caught.value)


def test_the_advice_is_to_resume_only_where_there_is_a_checkpoint(settings_for):
    with pytest.raises(UserError, match=r"cannot be written .*; free some space, then continue with --resume$"):  # noqa: SIM117
        with RunDirectory.create(settings_for()) as run:
            run.save(content_at(1))
            with disk_full_after(4000):
                for update in range(2, 200):
                    run.log({**dict.fromkeys(TAGS, 1 / 3), **record_at(update)})


@pytest.mark.parametrize("name", ["output_dir", "checkpoint_dir", "log_dir"])
def test_a_folder_that_cannot_be_made_is_blamed_on_the_setting_that_names_it(settings_for, tmp_path, name):
    (tmp_path / "file").touch()
    bad = str(tmp_path / "file" / "folder")
    match = rf"^output\.{name}={bad}(: .*)? cannot be written \(Not a directory\); choose a folder that exists$"
    with pytest.raises(UserError, match=match):
        RunDirectory.create(settings_for(**{name: bad}))


def test_a_disk_that_is_still_full_when_the_run_closes_does_not_hide_the_error(settings_for):
    with disk_full_after(4000), pytest.raises(UserError, match=r"PPO_Sequential cannot be written"):  # noqa: SIM117
        with RunDirectory.create(settings_for()) as run:
            for update in range(1, 200):
                run.log({**dict.fromkeys(TAGS, 1 / 3), **record_at(update)})


def test_a_disk_too_full_for_the_events_is_a_storage_error(settings_for):
    record = dict.fromkeys(TAGS, 1)
    with disk_full_after(5000), pytest.raises(UserError, match="cannot be written"):  # noqa: SIM117
        with RunDirectory.create(settings_for()) as run:
            for update in range(10):  # 4160 bytes of metrics, 5689 of events
                run.log({**record, "update": 1, "steps_global": 128, "fps": update / 2})


def test_a_checkpoint_that_cannot_be_read_now_is_not_set_aside_as_damaged(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
    unreadable = folder / "checkpoints" / "ppo_sequential_step_999.pt"
    unreadable.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        RunDirectory.resume(settings_for())
    assert unreadable.exists()


def test_a_checkpoint_of_other_settings_is_refused(settings_for):
    with RunDirectory.create(settings_for()) as run:
        run.save({**content_at(1), "settings": load_settings(flags={"env.name": "Acrobot-v1"}).to_yaml()})
    with pytest.raises(UserError, match=r"other settings: env.name=CartPole-v1 but the run has Acrobot-v1"):
        RunDirectory.resume(settings_for())


def test_a_run_resumed_in_another_mode_keeps_one_log_and_all_its_checkpoints(settings_for, folder):
    settings = settings_for(keep_checkpoints=2)
    with RunDirectory.create(settings) as run:
        run.log(record_at(1))
        run.save(content_at(1))
    with RunDirectory.resume(in_mode(settings, "parallel")) as run:
        assert run.restored["learner"]["updates"] == 1
        run.log(record_at(2))
        run.save(content_at(2))
        run.save(content_at(3))
    assert files_in(folder / "logs") == ["PPO_Parallel"]
    assert len(read_metrics(folder / "logs/PPO_Parallel/metrics.jsonl")) == 2
    assert files_in(folder / "checkpoints") == ["ppo_parallel_step_256.pt", "ppo_parallel_step_384.pt"]


def test_a_run_of_another_mode_does_not_share_its_checkpoints(settings_for, tmp_path):
    shared = str(tmp_path / "shared")
    with RunDirectory.create(settings_for(output_dir=str(tmp_path / "one"), checkpoint_dir=shared)) as run:
        run.save(content_at(9))
    other = in_mode(settings_for(output_dir=str(tmp_path / "other"), checkpoint_dir=shared), "parallel")
    with pytest.raises(UserError, match="holds checkpoints of a run"):
        RunDirectory.create(other)


def test_a_refused_writer_in_another_mode_leaves_the_log_where_it_is(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        run.save(content_at(1))
        with pytest.raises(UserError, match="is being written by another process"):
            RunDirectory.resume(in_mode(settings_for(), "parallel"))
    assert files_in(folder / "logs") == ["PPO_Sequential"]


def test_a_restarted_run_resumes_from_its_checkpoint_or_starts_over_without_one(settings_for, folder):
    settings = settings_for()
    with RunDirectory.create(settings):
        pass  # it failed before the first checkpoint
    with RunDirectory.restart(settings, restarts=1) as run:
        assert run.restored is None
        run.save(content_at(2))
    with RunDirectory.restart(settings, restarts=2) as run:
        assert run.restored["learner"]["updates"] == 2
    assert read_state(folder).restarts == 2


def test_a_restart_never_takes_over_a_run_that_another_process_has_begun(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(2))
    write_state(folder, read_state(folder)._replace(parent=1))
    with pytest.raises(UserError, match="exists; continue it with --resume"):
        RunDirectory.restart(settings_for(), restarts=1)


def test_a_restart_that_begins_again_drops_what_was_logged_before(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
    with RunDirectory.restart(settings_for(), restarts=1) as run:
        run.log({**record_at(1), "fps": 7.0})
    assert read_metrics(folder / "logs/PPO_Sequential/metrics.jsonl") == [{**record_at(1), "fps": 7.0}]


def test_a_restart_whose_run_was_never_begun_creates_it(settings_for, folder):
    with RunDirectory.restart(settings_for(), restarts=1) as run:
        assert run.restored is None
    assert read_state(folder).restarts == 1


def test_a_restart_of_a_resumed_run_resumes_though_its_directory_exists(settings_for):
    with open_run(settings_for(), resume=False, restarts=0) as run:
        run.save(content_at(1))
    for restarts in (0, 1):
        with open_run(settings_for(), resume=True, restarts=restarts) as run:
            assert run.restored["learner"]["updates"] == 1
    with open_run(settings_for(), resume=False, restarts=1) as run:
        assert run.restored["learner"]["updates"] == 1
    with pytest.raises(UserError, match="exists; continue it with --resume"):
        open_run(settings_for(), resume=False, restarts=0)


def test_half_written_files_of_a_killed_process_are_removed_on_resume(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
    leftover = folder / "checkpoints" / ".ppo_sequential_step_256.pt.4711.tmp"
    leftover.touch()
    with RunDirectory.resume(settings_for()):
        assert not leftover.exists()


# Finding what was trained


def test_a_checkpoint_file_means_itself(settings_for):
    with RunDirectory.create(settings_for()) as run:
        file = run.save(content_at(1))
        run.save(content_at(2), final=True)
    assert find_checkpoint(file).path == file


def test_a_run_means_its_final_checkpoint(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(1))
        final = run.save(content_at(2), final=True)
    assert find_checkpoint(folder).path == find_checkpoint(folder / "checkpoints").path == final


def test_an_unfinished_run_means_its_latest_checkpoint(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(9))
        latest = run.save(content_at(10))  # 1280 comes after 1152, though its name does not
    assert find_checkpoint(folder).path == latest


@pytest.mark.parametrize("name", ["missing", "missing.pt"])
def test_a_path_where_nothing_is_means_no_checkpoint(tmp_path, name):
    with pytest.raises(UserError, match=f"--checkpoint .*{name}: there is no such file or run directory"):
        find_checkpoint(tmp_path / name)


def test_a_directory_without_checkpoints_means_none(tmp_path):
    (tmp_path / "other.pt").touch()
    with pytest.raises(UserError, match=re.escape("no checkpoint (*_final.pt or *_step_*.pt) in it")):
        find_checkpoint(tmp_path)


def test_the_latest_run_is_the_one_begun_last_that_has_a_checkpoint(settings_for, tmp_path):
    for begun, (name, has_checkpoint) in enumerate([("b", True), ("a", True), ("c", False)]):
        with RunDirectory.create(settings_for(output_dir=str(tmp_path / name))) as run:
            if has_checkpoint:
                run.save(content_at(1))
        os.utime(tmp_path / name / "config.yaml", (begun, begun))
    assert latest_run(tmp_path) == tmp_path / "a"


def test_the_latest_run_may_keep_its_checkpoints_elsewhere(settings_for, tmp_path):
    for begun, (name, elsewhere) in enumerate(
        [("old", {}), ("new", {"checkpoint_dir": str(tmp_path / "checkpoints")})]
    ):
        with RunDirectory.create(settings_for(output_dir=str(tmp_path / "runs" / name), **elsewhere)) as run:
            run.save(content_at(1))
        os.utime(tmp_path / "runs" / name / "config.yaml", (begun, begun))
    assert latest_run(tmp_path / "runs") == tmp_path / "runs" / "new"
    assert find_checkpoint(tmp_path / "runs" / "new").path.parent == tmp_path / "checkpoints"


def test_checkpoints_of_another_algorithm_in_a_shared_folder_are_not_the_runs_own(settings_for, tmp_path):
    shared = {"checkpoint_dir": str(tmp_path / "shared")}
    with RunDirectory.create(settings_for(output_dir=str(tmp_path / "runs/ppo"), **shared)) as run:
        own = run.save(content_at(1))
    a2c = load_settings(
        "a2c",
        flags={"output.output_dir": str(tmp_path / "runs/a2c"), "output.checkpoint_dir": shared["checkpoint_dir"]},
    )
    with RunDirectory.create(a2c) as run:
        run.save({**content_at(9), "settings": a2c.to_yaml()})
    assert find_checkpoint(tmp_path / "runs/ppo").path == own


def test_a_run_that_cannot_be_read_is_not_the_latest_and_is_named(settings_for, tmp_path, capsys):
    for begun, name in enumerate(("old", "new")):
        with RunDirectory.create(settings_for(output_dir=str(tmp_path / name))) as run:
            run.save(content_at(1))
        file = tmp_path / name / "config.yaml"
        file.write_text(file.read_text() if name == "old" else "env: {flavour: 3}")
        os.utime(file, (begun, begun))
    assert latest_run(tmp_path) == tmp_path / "old"
    assert f"skipped: {tmp_path / 'new'}: is not a run of this version" in capsys.readouterr().err


def test_without_a_run_there_is_no_latest(tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"no run with a checkpoint below .*; give --checkpoint PATH or train first"):
        latest_run(tmp_path)


# TensorBoard


def events_of(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_every_number_of_the_log(settings_for, folder):
    numbers = {name: float(position) for position, name in enumerate(TAGS)}
    with RunDirectory.create(settings_for()) as run:
        run.log({"update": 1, "steps_global": 128, **numbers})
        run.log({"update": 2, "steps_global": 256, **numbers, "fps": 50.0, "episode_reward_mean": None})
    events = events_of(folder)
    assert sorted(events.Tags()["scalars"]) == sorted(TAGS.values())
    assert [(event.step, event.value) for event in events.Scalars("time/fps")] == [
        (128, list(TAGS).index("fps")),
        (256, 50.0),
    ]
    assert [event.step for event in events.Scalars("rollout/ep_rew_mean_of_update")] == [
        128
    ]  # none finished in update 2
    for name, tag in TAGS.items():
        assert events.Scalars(tag)[0].value == numbers[name]


def test_tensorboard_knows_the_groups_of_other_libraries():
    assert {tag.split("/")[0] for tag in TAGS.values()} == {"rollout", "time", "train", "asynchrony", "memory"}
    assert TAGS["episode_reward_recent"] == "rollout/ep_rew_mean"
    assert (TAGS["episode_length_mean"], TAGS["fps"]) == ("rollout/ep_len_mean", "time/fps")


def test_an_evaluation_inside_a_run_is_shown_by_tensorboard(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
    results = {"test": {"episodes": 50, "reward_mean": 7.5, "length_mean": 90.0, "levels_completed": None}}
    facts = {"checkpoint": "x.pt", "env": "CartPole-v1", "steps_global": 128, "deterministic": False, "seed": 0}
    write_evaluation(folder / "evaluation.json", facts, {**results, "train": {"episodes": 50, "reward_mean": 8.0}})
    events = events_of(folder / "evaluation")
    assert sorted(events.Tags()["scalars"]) == [
        "eval/mean_ep_length",
        "eval/mean_reward",
        "eval/mean_reward_training_levels",
    ]
    assert [(event.step, event.value) for event in events.Scalars("eval/mean_reward")] == [(128, 7.5)]


def test_events_next_to_the_metrics_of_an_earlier_version_move_to_the_run(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        run.save(content_at(1))
    (events,) = folder.glob("events.*")
    events.rename(folder / "logs" / "PPO_Sequential" / events.name)
    with RunDirectory.resume(settings_for()):
        pass
    assert len(list(folder.glob("events.*"))) == 2  # the earlier one, and that of this part
    assert files_in(folder / "logs" / "PPO_Sequential") == ["metrics.jsonl"]


def test_tensorboard_does_not_show_what_was_beyond_the_checkpoint(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        for update in (1, 2, 3, 4):
            run.log(record_at(update))
        run.save(content_at(2))
    with RunDirectory.resume(settings_for()) as run:
        run.log({**record_at(3), "fps": 7.0})
    events = events_of(folder).Scalars("time/fps")
    assert [(event.step, event.value) for event in events] == [(128, 101.0), (256, 102.0), (384, 7.0)]


def test_a_metric_that_is_not_finite_has_no_value_in_the_log(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.log({**record_at(1), "approx_kl": float("inf"), "explained_variance": float("nan")})
    (record,) = read_metrics(folder / "logs" / "PPO_Sequential" / "metrics.jsonl")
    assert (record["approx_kl"], record["explained_variance"]) == (None, None)


def test_metrics_that_are_lost_before_the_checkpoint_are_counted_on_resume(settings_for, folder, capsys):
    metrics = folder / "logs" / "PPO_Sequential" / "metrics.jsonl"
    with RunDirectory.create(settings_for()) as run:
        for update in range(1, 6):
            run.log(record_at(update))
        run.save(content_at(5))
    lines = metrics.read_bytes().splitlines()
    lines[1], lines[3] = b'{"upd\x00\xff', b"[4]"
    metrics.write_bytes(b"\n".join(lines) + b"\n")
    with RunDirectory.resume(settings_for()) as run:
        run.log(record_at(6))
    assert "has lost 2 updates of the 5 before the checkpoint" in capsys.readouterr().err
    assert read_metrics(metrics) == [record_at(1), record_at(3), record_at(5), record_at(6)]
    metrics.unlink()
    with RunDirectory.resume(settings_for()) as run:
        run.log(record_at(6))
    assert "5 updates of the 5 before the checkpoint" in capsys.readouterr().err


EVALUATED = {"update": 1, "steps_global": 128, "elapsed_seconds": 2.5, "reward_mean": 7.5}


@pytest.mark.parametrize(
    "line",
    [
        b'{"upd\x00\xff',
        b"[4]",
        b'{"update": 2}',
        json.dumps({**EVALUATED, "update": 2, "reward_mean": None}).encode(),
        json.dumps({**EVALUATED, "update": 2, "steps_global": "256"}).encode(),
        json.dumps({**EVALUATED, "update": 2}).replace("2.5", "1e999").encode(),
    ],
)
def test_evaluations_that_cannot_be_read_are_dropped_on_resume_with_a_warning(settings_for, folder, capsys, line):
    with RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        run.log_evaluation(EVALUATED)
        run.save(content_at(3))
    with (folder / "logs" / "PPO_Sequential" / "evaluations.jsonl").open("ab") as file:
        file.write(line + b"\n" + json.dumps({**EVALUATED, "update": 3}).encode() + b"\n")
        file.write(json.dumps({**EVALUATED, "update": 4}).encode() + b'\n{"upd')  # after the checkpoint: no loss
    capsys.readouterr()
    with RunDirectory.resume(settings_for()) as run:
        assert [one["update"] for one in run.evaluations()] == [1, 3]
    assert "evaluations.jsonl has 1 line that cannot be read; " in capsys.readouterr().err
    with RunDirectory.resume(settings_for()) as run:
        assert [one["update"] for one in run.evaluations()] == [1, 3]
    assert "evaluations.jsonl" not in capsys.readouterr().err


@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_changed_in_any_way_never_prevents_a_resumption(settings_for, folder, data):
    """What is kept is a part of what was logged, or what somebody else wrote as a record; always in order."""
    shutil.rmtree(folder, ignore_errors=True)
    metrics = folder / "logs" / "PPO_Sequential" / "metrics.jsonl"
    with RunDirectory.create(settings_for()) as run:
        for update in range(1, 4):
            run.log(record_at(update))
        run.save(content_at(3))
    whole = metrics.read_bytes()
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    foreign = st.sampled_from([b'{"update": 2}\n', b'{"update": NaN}\n', b"[" * 5000, b"\r\n\x85", b'{"update": true}'])
    metrics.write_bytes(whole[:begin] + data.draw(st.binary(max_size=30) | foreign) + whole[end:])
    with RunDirectory.resume(settings_for()) as run:
        run.log(record_at(4))
    updates = [record["update"] for record in read_metrics(metrics)]
    assert updates == sorted(set(updates))
    assert set(updates) <= {1, 2, 3, 4}
    assert updates[-1] == 4


def test_a_start_that_is_refused_leaves_nothing(settings_for, tmp_path):
    (tmp_path / "file").touch()
    output = {"output_dir": str(tmp_path / "new" / "run"), "log_dir": str(tmp_path / "file")}
    with pytest.raises(UserError, match=r"Not a directory|File exists"):
        RunDirectory.create(settings_for(**output))
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("is_there_before", [False, True])
def test_nothing_is_left_of_a_run_that_is_refused_or_stopped_before_its_first_update(
    settings_for, tmp_path, is_there_before
):
    path = tmp_path / "new" / "run"
    if is_there_before:
        path.mkdir(parents=True)
    settings = settings_for(output_dir=str(path), log_dir=str(tmp_path / "logs"))
    with pytest.raises(UserError, match="no such level"), RunDirectory.create(settings):
        raise UserError("no such level")
    with RunDirectory.create(settings) as run:
        run.conclude("preempted", "SIGINT")
    assert sorted(tmp_path.rglob("*")) == ([path.parent, path] if is_there_before else [])


def test_a_run_that_has_logged_or_saved_stays(settings_for, folder):
    with pytest.raises(UserError, match="NaN"), RunDirectory.create(settings_for()) as run:
        run.log(record_at(1))
        raise UserError("NaN")
    assert read_state(folder).state == "failed"


def test_a_resumed_run_that_is_stopped_before_its_first_update_stays(settings_for, folder):
    with RunDirectory.create(settings_for()) as run:
        run.save(content_at(3))
    with RunDirectory.resume(settings_for()) as run:
        run.conclude("preempted", "SIGINT")
    assert (read_state(folder).state, read_state(folder).update) == ("preempted", 3)


def test_a_bug_before_the_first_update_leaves_its_record(settings_for, folder):
    with pytest.raises(ZeroDivisionError), RunDirectory.create(settings_for()):
        raise ZeroDivisionError("division by zero")
    assert read_state(folder).reason == "ZeroDivisionError: division by zero"


def test_a_run_without_a_checkpoint_is_not_said_to_be_resumable(settings_for, folder):
    with RunDirectory.create(settings_for()):
        pass
    with pytest.raises(UserError, match="exists; it has no checkpoint to resume from: remove it, or choose another"):
        RunDirectory.create(settings_for())
