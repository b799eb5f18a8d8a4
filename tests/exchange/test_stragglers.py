"""Straggler preemption: DD-PPO's rule, what it saves, and the gradient over rollouts of unequal lengths."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.stragglers import Race
from rlcluster.learning.actor import Actor
from rlcluster.learning.learner import Learner
from rlcluster.learning.minibatches import Minibatches, flatten
from rlcluster.learning.model import Model
from rlcluster.networks.policy import make_policy
from rlcluster.plan import partition
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings

from conftest import on_ranks

STEPS = 40


class SeveralRanks(Ranks):
    """Five ranks simulated in one process."""

    world_size = 5


def test_the_rule_is_60_percent_finished_and_25_percent_done() -> None:
    ranks = SeveralRanks()
    race = Race(ranks, STEPS, update=3)
    assert not race.is_over(39)
    assert race.is_over(STEPS)  # one of five has finished
    assert race.is_over(STEPS)  # two: 40 %
    assert not race.is_over(30)
    assert race.is_over(STEPS)  # three: 60 %
    assert not race.is_over(9)
    assert race.is_over(10)
    assert not Race(ranks, STEPS, update=4).is_over(30), "another rollout starts over"


def settings_for(preempt: bool) -> Settings:
    flags = {
        "env.name": "CartPole-v1",
        "env.num_envs": 6,
        "training.n_steps": STEPS,
        "training.n_minibatches": 1,
        "training.n_epochs": 1,
        "training.normalize_rewards": "no",
        "training.max_grad_norm": 1e9,
        "parallel.preempt_stragglers": str(preempt),
        "parallel.num_workers": 3,
    }
    return load_settings("ppo", "parallel", flags=flags)


class SlowEnvironments:
    """Environments with a delay at every step."""

    def __init__(self, environments: Any, seconds: float) -> None:
        self._environments, self._seconds = environments, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environments, name)

    def step(self, actions: Any) -> Any:
        time.sleep(self._seconds)
        return self._environments.step(actions)


def one_update(ranks: Ranks, preempt: bool) -> dict[str, Any]:
    """Rank 2 is slow. Returns what the rank collected and the all-reduced gradient."""
    settings = settings_for(preempt)
    share = partition(range(settings.env.num_envs), ranks.world_size)[ranks.rank]
    vector = environments.make(settings.env, share)
    actor = Actor(SlowEnvironments(vector, 0.1 if ranks.rank == 2 else 0.0), STEPS, settings.env.seed)  # type: ignore[arg-type]
    policy = make_policy(settings.policy, vector.spec, settings.env.seed)
    model = Model(settings, policy, share, ranks)
    learner = Learner(settings, model, ranks)
    ranks.sum_(torch.zeros(1))  # a barrier
    rollout = actor.collect(policy, 0, Race(ranks, STEPS, 0).is_over if preempt else None).rollout
    start = time.perf_counter()
    ranks.sum_(torch.zeros(1))
    waited = time.perf_counter() - start
    source = Minibatches(settings, model, ranks, chunk_size=1000)
    samples = flatten(rollout, source.targets(rollout, *learner._rewards([rollout])))
    learner.learn([rollout], 0.0)
    return {
        "n_steps": rollout.n_steps,
        "waited": waited,
        "steps_global": model.steps_global,
        "gradient": model.flat.gradients.tolist(),
        "observations": rollout.observations.flatten(0, 1).tolist(),
        "samples": [column.tolist() for column in samples],
    }


@pytest.fixture(scope="module")
def preempted() -> list[dict[str, Any]]:
    return on_ranks(3, one_update, True)


def test_the_others_wait_less_for_a_slow_rank(preempted: list[dict[str, Any]]) -> None:
    patient = on_ranks(3, one_update, False)
    assert [result["n_steps"] for result in patient] == [STEPS] * 3
    assert [result["n_steps"] for result in preempted[:2]] == [STEPS] * 2
    assert STEPS / 4 <= preempted[2]["n_steps"] < STEPS
    assert preempted[0]["waited"] < patient[0]["waited"]  # 10 slow steps instead of 40, by sleeps, not by load
    assert preempted[0]["steps_global"] == 2 * sum(result["n_steps"] for result in preempted)


def test_the_gradient_is_the_mean_over_the_samples_taken(preempted: list[dict[str, Any]]) -> None:
    """In plain torch: the mean PPO loss over all samples of all ranks, with advantages normalised over them."""
    settings = settings_for(preempt=True)
    policy = make_policy(settings.policy, environments.describe(settings.env), settings.env.seed)
    observations = torch.tensor([row for result in preempted for row in result["observations"]])
    columns = [torch.tensor([v for result in preempted for v in result["samples"][k]]) for k in range(5)]
    actions, log_probs, values, advantages, returns = columns
    advantages = (advantages - advantages.mean()) / advantages.std(correction=0)
    output = policy(observations)
    distribution = torch.distributions.Categorical(logits=output.logits)
    ratio = (distribution.log_prob(actions) - log_probs).exp()
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    clipped = values + (output.values - values).clamp(-0.2, 0.2)
    value_loss = 0.5 * torch.max((output.values - returns).square(), (clipped - returns).square())
    (policy_loss + 0.5 * value_loss - 0.01 * distribution.entropy()).mean().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None])
    for result in preempted:
        torch.testing.assert_close(torch.tensor(result["gradient"]), expected, rtol=1e-3, atol=1e-6)
