"""Types of settings that have rules of their own: paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import setting_fields
from rlcluster.settings.values import parse_path
from rlcluster.system.errors import UserError

PATHS = ("policy.init_from", "hardware.rollout_dir", "output.output_dir", "output.checkpoint_dir", "output.log_dir")


def value_of(key: str, settings: Any) -> Any:
    section, name = key.split(".")
    return getattr(getattr(settings, section), name)


def test_every_setting_that_names_a_folder_is_a_path() -> None:
    assert tuple(field.key for field in setting_fields() if field.is_path) == PATHS


@pytest.mark.parametrize("key", PATHS)
def test_a_tilde_is_the_home_folder_in_files_and_flags(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    section, name = key.split(".")
    file = tmp_path / "settings.yaml"
    file.write_text(f"{section}: {{{name}: ~/q}}")
    assert value_of(key, load_settings(file=file)) == "/home/somebody/q"
    assert value_of(key, load_settings(flags={key: "~/q"})) == "/home/somebody/q"


@pytest.mark.parametrize("path", ["q", "./q", "a~b", "/~/q", "a" * 255, "/".join(["a" * 99] * 40)])
def test_any_other_path_stays_as_it_is(path: str) -> None:
    assert parse_path(path) == path


def test_a_folder_whose_name_is_a_tilde_can_be_given_and_passed_on() -> None:
    path = parse_path("./~/q")
    assert path == str(Path.cwd() / "~" / "q")
    assert parse_path(str(Path(str(path)))) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("~no-such-user/q", "there is no home folder ~no-such-user; for a folder of that name write ./~no-such-user"),
        ("a" * 300, r"is too long \(a name of 300, a path of 300\): at most 255 bytes for a name"),
        ("é" * 128, "a name of 256"),
        ("/".join(["a" * 99] * 41), "a path of 4099"),
        ("a\0b", "has a null character; leave it out"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused_under_its_setting(path: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)^output\.output_dir=.*: .*{reason}"):
        load_settings(flags={"output.output_dir": path})


def test_a_path_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match="is not UTF-8; rename it"):
        parse_path("caf\udce9")
