"""The table of logged fields, and all that follows from it."""

from pathlib import Path

import numpy as np
import pytest

from rlcluster.learning.learner import LearnReport
from rlcluster.runs import fields
from rlcluster.runs.episodes import EpisodeSummary
from rlcluster.runs.fields import FIELDS, NAMES, TAGS
from rlcluster.runs.log import RunLog
from rlcluster.runs.loggers import LogStart
from rlcluster.runs.metrics import read_metrics_file

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def test_every_field_stands_once_with_a_meaning_and_a_tag_of_its_own():
    assert len(NAMES) == len(FIELDS)
    assert len(set(TAGS.values())) == len(TAGS) == len(FIELDS) - 1  # steps_global is TensorBoard's axis
    assert all(field.meaning for field in FIELDS)


def test_the_document_has_this_table():
    assert fields.markdown() in ARCHITECTURE.read_text(), "\n" + fields.markdown()


@pytest.mark.parametrize(("record", "producer"), [(LearnReport, "learner"), (EpisodeSummary, "episodes")])
def test_what_a_producer_reports_is_in_the_table_under_its_name(record, producer):
    others = {"episode_reward_recent", "episode_reward_recent_std"}  # over several updates
    assert set(record._fields) == {field.name for field in FIELDS if field.producer == producer} - others


def test_a_field_that_is_not_in_the_table_is_neither_logged_nor_read(tmp_path):
    log = RunLog(LogStart(tmp_path, tmp_path, tmp_path, {}, 0))
    log.add({"update": 1, "steps_global": 8, "elapsed_seconds": 1.0, "fps": 8.0})
    with pytest.raises(ValueError, match=r"mystery: not in the table of logged fields"):
        log.add({"update": 2, "steps_global": 16, "mystery": 1.0})
    log.close("finished")
    metrics = read_metrics_file(tmp_path / "metrics.jsonl")
    np.testing.assert_array_equal(metrics["fps"], [8.0])
    assert np.isnan(metrics["staleness_max"]).all()
    with pytest.raises(ValueError, match="mystery"):
        metrics["mystery"]
