"""Whatever a settings file or a flag holds, the result is valid settings or a short refusal: never a traceback."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rlcluster.cli import _settings
from rlcluster.flags import flag_names, make_parser
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.loading import MAX_LISTED, load_settings
from rlcluster.settings.schema import MODE_NAMES, Settings, setting_fields
from rlcluster.system.errors import EXIT_USAGE, UserError

FIELDS = tuple(setting_fields())
SECTIONS = sorted({field.section for field in FIELDS})
bounded = hypothesis_settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])

words = st.sampled_from(
    ["null", "~", "", "true", "no", "nan", "inf", "-inf", "1e999", "1e308", "64,64", "30m", "1e", "~x"]
)
numbers = st.integers() | st.floats() | st.integers(0, 10**6)
scalars = st.none() | st.booleans() | numbers | st.text() | words | numbers.map(str)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
names = st.sampled_from([field.name for field in FIELDS]) | st.text(max_size=8)
sections = st.dictionaries(names, values, max_size=6) | values
files = st.dictionaries(st.sampled_from([*SECTIONS, "algorithm", "mode"]) | st.text(max_size=8), sections, max_size=6)


def refused_or_valid(load: Callable[[], Settings]) -> Settings | None:
    """The settings, which can be written and read again; None after a short refusal."""
    try:
        settings = load()
    except UserError as error:
        lines = str(error).splitlines()
        assert error.exit_code == EXIT_USAGE
        assert 1 <= len(lines) <= MAX_LISTED + 2
        assert all(len(line) < 2000 for line in lines)
        return None
    assert load_settings(base=yaml.safe_load(settings.to_yaml())).to_dict() == settings.to_dict()
    return settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzing")


def load_bytes(folder: Path, suffix: str, content: bytes) -> None:
    file = folder / f"settings{suffix}"
    file.write_bytes(content)
    refused_or_valid(lambda: load_settings(file=file))


@bounded
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".yaml", ".json", ""]))
@example(content=b"\xef\xbb\xbf{}", suffix=".json")
@example(content=b"a: &a [*a]\n", suffix=".yaml")
@example(content=b"<<: {env: {}}\n", suffix=".yaml")
@example(content=b"? [a]\n: b\n", suffix=".yaml")
@example(content=b"env: !!python/object/apply:os.getcwd []\n", suffix=".yaml")
@example(content=b'{"env": "\\ud800", "\\ud800": 1}', suffix=".json")
@example(content=b'{"env": {"seed": ' + b"9" * 5000 + b"}}", suffix=".json")
@example(content=b'{"env": {"name": "\\ud800", "seed": NaN}}', suffix=".json")
def test_any_bytes_are_settings_or_refused(folder: Path, content: bytes, suffix: str) -> None:
    load_bytes(folder, suffix, content)


@bounded
@given(text=st.text(st.sampled_from("envtraig_:,[]{}&*!|>'\"#%@`?-~ \n\t0123456789"), max_size=80))
def test_any_text_of_yaml_characters_is_settings_or_refused(folder: Path, text: str) -> None:
    load_bytes(folder, ".yaml", text.encode())


@bounded
@given(data=files)
def test_any_values_under_the_names_of_settings_are_settings_or_refused(folder: Path, data: dict[str, Any]) -> None:
    load_bytes(folder, ".json", json.dumps(data).encode())
    load_bytes(folder, ".yaml", yaml.safe_dump(data).encode(errors="surrogatepass"))


argument_text = st.text(st.characters(blacklist_characters="\0", blacklist_categories=())) | words | numbers.map(str)


@bounded
@given(
    first=st.sampled_from([(), *((name,) for name in ALGORITHMS)]),
    mode=st.sampled_from([(), *(("--mode", name) for name in MODE_NAMES)]),
    given_flags=st.lists(st.tuples(st.sampled_from(FIELDS), argument_text), max_size=5),
)
def test_any_values_of_flags_are_settings_or_refused(
    first: tuple[str, ...], mode: tuple[str, ...], given_flags: list[tuple[Any, str]]
) -> None:
    arguments = ["train", *first, *mode, *(f"{flag_names(field)[0]}={text}" for field, text in given_flags)]
    options = parsed(arguments)
    if options is not None:
        refused_or_valid(lambda: _settings(options, resume=False))


def parsed(arguments: list[str]) -> argparse.Namespace | None:
    """None after a refusal in one line."""
    parser, errors = make_parser(), io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            parser.refuse_unknown_flags(arguments)
            return parser.parse_args(arguments)
        except SystemExit as exit_request:
            assert exit_request.code == EXIT_USAGE
            assert errors.getvalue().startswith(f"rlcluster {arguments[0]}: error: ")
            assert errors.getvalue().count("\n") == 1
            return None


OTHER_FLAGS = [
    *(("evaluate", flag) for flag in ("checkpoint", "env", "num-episodes", "levels", "seed", "video", "num-threads")),
    *(("compare", flag) for flag in ("sequential", "output", "threshold", "score-range")),
    *(("plot", flag) for flag in ("log-file", "output")),
    *(("scale", flag) for flag in ("world-sizes", "scaling", "repeats", "warmup-iters")),
]


@bounded
@given(flag=st.sampled_from(OTHER_FLAGS), text=argument_text)
def test_any_value_of_another_commands_flag_is_parsed_or_refused(flag: tuple[str, str], text: str) -> None:
    parsed([flag[0], f"--{flag[1]}={text}"])
