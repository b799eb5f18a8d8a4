"""The share of a budget that is spent."""

import pytest

from rlcluster.runs.budget import Budget
from rlcluster.settings.schema import TrainingSettings


@pytest.mark.parametrize(
    ("limit", "progress"),
    [({"total_timesteps": 4000}, 0.25), ({"duration": "100s"}, 0.3), ({"total_updates": 10}, 0.4)],
)
def test_a_budget_of_one_kind_is_spent_by_that_kind_alone(limit, progress):
    assert Budget(TrainingSettings(**limit)).progress(steps=1000, seconds=30.0, updates=4) == progress


def test_of_several_budgets_the_one_spent_most_counts():
    budget = Budget(TrainingSettings(total_timesteps=4000, duration="100s", total_updates=10))
    assert budget.progress(steps=1000, seconds=30.0, updates=4) == 0.4
    assert budget.progress(steps=3000, seconds=30.0, updates=4) == 0.75
    assert budget.progress(steps=1000, seconds=90.0, updates=4) == 0.9


def test_a_new_run_has_spent_nothing():
    budget = Budget(TrainingSettings(total_timesteps=4000, duration="100s", total_updates=10))
    assert budget.progress(steps=0, seconds=0.0, updates=0) == 0.0


@pytest.mark.parametrize(("steps", "progress"), [(3999, 3999 / 4000), (4000, 1.0), (4096, 1.0)])
def test_progress_ends_at_one_when_the_last_rollout_goes_beyond_the_budget(steps, progress):
    assert Budget(TrainingSettings(total_timesteps=4000)).progress(steps, 0.0, 0) == progress


def test_a_target_reward_ends_the_run_once_100_episodes_reach_it():
    budget = Budget(TrainingSettings(total_timesteps=4000, target_reward=8.0))
    assert budget.progress(1000, 0.0, 0, reward=None) == 0.25  # fewer than 100 episodes
    assert budget.progress(1000, 0.0, 0, reward=7.99) == 0.25
    assert budget.progress(1000, 0.0, 0, reward=8.0) == 1.0
    assert budget.progress(4000, 0.0, 0, reward=0.0) == 1.0  # the limit stays
