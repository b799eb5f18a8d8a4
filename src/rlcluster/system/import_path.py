"""The user's own code by import path: `my_module:MyCallback`. Modules of the current folder are found too."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

from rlcluster.system.errors import UserError, fault_of


def load_object(path: str, setting: str) -> Any:
    """The object that `MODULE:NAME` means; `setting` is what errors call it."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"{setting}={path}: should be MODULE:NAME, such as my_module:{name or 'make_it'}")
    module = load_module(module_name, f"{setting}={path}")
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            close = difflib.get_close_matches(part, [own for own in vars(value) if not own.startswith("_")], n=1)
            guess = f"; did you mean {close[0]}?" if close else ""
            raise UserError(f"{setting}={path}: {module_name} has no {name}{guess}")
        value = getattr(value, part)
    return value


def load_module(name: str, given: str) -> Any:
    """A module by name, also of the current folder; `given` is the setting and its value."""
    folder = os.getcwd()  # noqa: PTH109 - as sys.path has it
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    with fault_of(f"{given}: the module {name} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise  # the module is there, and something that it imports is not
            raise UserError(f"{given}: there is no module {name} in {folder} or among the installed packages") from None
