"""Presets: settings files that come with the package, by name, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcluster.cli import main
from rlcluster.experiments.suite_plan import read_suite
from rlcluster.settings.loading import load_settings, read_file
from rlcluster.settings.presets import SUITE, TRAINING, Preset, preset, presets
from rlcluster.system.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_presets_are_the_files_of_configs() -> None:
    assert sorted(one.name for one in presets()) == sorted(file.stem for file in CONFIGS.glob("*.yaml"))
    assert all(one.text == (CONFIGS / f"{one.name}.yaml").read_text() for one in presets())


@pytest.mark.parametrize("name", [one.name for one in presets() if one.use == TRAINING])
def test_every_preset_of_training_is_valid_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(file=name) == load_settings(file=CONFIGS / f"{name}.yaml")


@pytest.mark.parametrize("name", [one.name for one in presets() if one.use == SUITE])
def test_every_preset_of_a_suite_is_valid_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_suite(Path(name)).cells


def test_a_file_of_the_same_name_in_this_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ppo_procgen").write_text("env: {num_envs: 7}")
    assert read_file("ppo_procgen") == {"env": {"num_envs": "7"}}


def test_a_summary_is_the_first_sentence_of_the_comment(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# PPO (arXiv 1912.01588), on\n# two lines. More of it.\nenv:\n  name: maze  # no summary\n")
    assert Preset("mine", file).summary == "PPO (arXiv 1912.01588), on two lines"


def test_the_command_lists_every_preset_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rlcluster train --config NAME"
    for one in presets():
        assert [line.split(None, 1) for line in lines if line.split()[0] == one.name] == [[one.name, one.summary]]


def test_the_command_prints_one_preset_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--show", "ppo_procgen"]) == 0
    assert capsys.readouterr().out == (CONFIGS / "ppo_procgen.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("ppo_procgn", "there is no preset ppo_procgn; did you mean the preset ppo_procgen?"),
        ("zzz", "there is no preset zzz; `rlcluster presets` lists them"),
    ],
)
def test_an_unknown_preset_is_refused_with_a_remedy(name: str, end: str) -> None:
    with pytest.raises(UserError) as error:
        preset(name)
    assert str(error.value) == end


def test_a_missing_file_of_configs_names_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"No such file or directory; did you mean the preset ppo_procgen\?$"):
        read_file("configs/ppo_procgen.yaml")
