"""Reads a settings file (YAML or JSON) into nested dicts, and shows what it holds in messages of bounded length."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import reprlib
import stat
from pathlib import Path
from typing import Any

import yaml

from rlcluster.settings.presets import find_file, hint_of_preset
from rlcluster.system.errors import EXIT_STORAGE, REFUSALS, UserError

MAX_FILE_BYTES = 64 * 1024  # a file with every setting has 3 kB
MAX_SHOWN = 100  # characters of a value in a message


def read_file(path: str | Path, name: str = "--config") -> dict[str, Any]:
    """A YAML or JSON file, or a preset by its name, as nested dicts. YAML scalars stay strings, to be converted by
    declared type. `name` is what errors call the file.
    """
    path = find_file(path)
    try:
        text = _read_regular_file(path).decode("utf-8")
        data = _from_json(text) if path.suffix == ".json" else yaml.load(text, Loader=_Loader)
    except OSError as error:
        if error.errno in REFUSALS:
            raise UserError(f"{name} {path}: {error.strerror}; change who may read it", EXIT_STORAGE) from None
        remedy = hint_of_preset(path) or "; give the path of a YAML or JSON file, or a name of `rlcluster presets`"
        raise UserError(f"{name} {path}: {error.strerror}{remedy}") from None
    except RecursionError:
        raise UserError(f"{name} {path}: nested too deeply; settings have sections, and sections have values") from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.start} is not UTF-8; save it as UTF-8"
        raise UserError(f"{name} {path}: not readable as {path.suffix or 'YAML'}: {reason}") from None
    if data is None or data == "":
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{name} {path}: should be a mapping of settings, not a list or a string")
    return data


def shown(value: object) -> str:
    """A value from a file, in one line: a few lines of YAML can describe a list of millions."""
    text = value[: 2 * MAX_SHOWN] if isinstance(value, str) else _SHORT.repr(value)
    line = " ".join(text.split())
    is_whole = len(line) <= MAX_SHOWN and not (isinstance(value, str) and len(value) > len(text))
    return line if is_whole else f"{line[:MAX_SHOWN]}..."


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, MAX_SHOWN, MAX_SHOWN


def _read_regular_file(path: Path) -> bytes:
    """Other files may have no end (/dev/zero) or keep their reader waiting (a FIFO)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(0, f"Larger than {MAX_FILE_BYTES // 1024} KiB")
    return content


class _DuplicateKeyError(ValueError):
    pass


def _from_json(text: str) -> Any:
    """JSON's parser does not say where a duplicate key is. YAML's does, and reads JSON that has no tabs."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except _DuplicateKeyError:
        with contextlib.suppress(yaml.YAMLError):
            yaml.load(text.replace("\t", " "), Loader=_Loader)  # raises an error that names the lines
        raise


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a duplicate key is an error, where JSON would silently take the last."""
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise _DuplicateKeyError(f"{shown(key)} is given twice")
        data[key] = value
    return data


class _Loader(yaml.BaseLoader):
    """Scalars stay strings; a duplicate key is an error, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the base class refuses it
            line = key.start_mark.line + 1
            if key.value in lines:
                place = f"lines {lines[key.value]} and {line}" if line > lines[key.value] else f"line {line}"
                raise ValueError(f"{shown(key.value)} is given twice, in {place}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)
