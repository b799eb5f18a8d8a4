"""The settings of `rlcluster profile`: a short training run whose updates are profiled after a warm-up."""

from __future__ import annotations

from collections.abc import Mapping

from rlcluster.settings.loading import Files, load_settings
from rlcluster.settings.schema import BUDGETS, Settings
from rlcluster.system.errors import UserError

WARM_UP_UPDATES = 2
DECIDED_HERE = {
    **{f"training.{budget}": "--updates decides how long it runs" for budget in BUDGETS},
    "output.profile": "the profile begins after a warm-up",
    "output.profile_updates": "use --updates",
    "output.output_dir": "use --output",
}


def profiled_settings(
    source: tuple[str | None, str | None, Files], flags: Mapping[str, str], updates: int, output: str
) -> Settings:
    """`source` is algorithm, mode and files. Raises a UserError for flags that this command decides."""
    for key, reason in DECIDED_HERE.items():
        if key in flags:
            raise UserError(f"{key}={flags[key]}: {reason}; leave it out")
    decided = {
        "training.total_updates": str(WARM_UP_UPDATES + updates),
        "output.profile": str(WARM_UP_UPDATES + 1),
        "output.profile_updates": str(updates),
        "output.output_dir": output,
    }
    return load_settings(*source, {**flags, **decided})
