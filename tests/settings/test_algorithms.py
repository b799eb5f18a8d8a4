"""The table of algorithms: every record is complete, and the README's table and validation follow from it."""

import importlib
from pathlib import Path

import pytest

from rlcluster.learning.losses import LOSSES
from rlcluster.settings.algorithms import ALGORITHM_SPECIFIC_SETTINGS, ALGORITHMS
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import MODE_NAMES, setting_fields
from rlcluster.system.errors import UserError

README = Path(__file__).parents[2] / "README.md"
SETTINGS = {field.key: field for field in setting_fields()}


@pytest.mark.parametrize("record", ALGORITHMS.values(), ids=str)
def test_a_record_names_a_loop_for_each_mode_a_loss_and_settings_that_exist(record):
    assert tuple(record.cells) == MODE_NAMES
    for cell in record.cells.values():
        assert callable(importlib.import_module(f"rlcluster.training.{cell.loop}").run)
    assert callable(LOSSES[record.loss])
    assert set(record.reads) <= set(SETTINGS)
    assert {f"{section}.{name}" for section, names in record.defaults.items() for name in names} <= set(SETTINGS)


def test_the_readmes_table_is_this_one():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.read_text().splitlines()]
    heading = rows.index(["", *MODE_NAMES])
    expected = [[record.name, *(cell.note for cell in record.cells.values())] for record in ALGORITHMS.values()]
    assert rows[heading + 2 : heading + 2 + len(expected)] == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("key", ALGORITHM_SPECIFIC_SETTINGS)
def test_a_setting_that_an_algorithm_does_not_read_is_refused_by_name(algorithm, key):
    default = SETTINGS[key].info.default
    value = {"training.optimizer": "adam", "training.batch_size": 512}.get(key, 1 if default is None else default)
    base = {key.split(".")[0]: {key.split(".")[1]: value}}
    if key in ALGORITHMS[algorithm].reads:
        load_settings(algorithm, "parallel", base=base)
    else:
        with pytest.raises(UserError, match=rf"{key}=.* has no effect with {algorithm}; remove it"):
            load_settings(algorithm, "parallel", base=base)
