"""Settings that runs of earlier versions did not record, with the values that those versions used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcluster.settings.values import is_null

# Before IMPALA had minibatches, an update was one optimiser step on all trajectories, without clipping.
PLAIN_IMPALA = {"n_minibatches": 1, "n_epochs": 1, "clip_range": None, "clip_value_range": None, "target_kl": None}


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded settings of a run with those that its version did not record."""
    training = data.get("training")
    if data.get("algorithm") == "impala" and isinstance(training, Mapping) and "clip_range" not in training:
        return {**data, "training": {**training, **PLAIN_IMPALA}}
    if data.get("algorithm") == "impala" and isinstance(training, Mapping) and is_null(training["clip_range"]):
        return {**data, "training": {**training, "clip_value_range": None}}  # was recorded, and had no effect
    return dict(data)
