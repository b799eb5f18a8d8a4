"""One update of PPO and one of IMPALA, written from top to bottom with torch alone, as a single-file script would: the
learner must do the same. Read these first to see what an update is.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from rlcluster.environments.randomness import Purpose, generator
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import make_actor
from rlcluster.learning.learner import Learner
from rlcluster.learning.model import Model
from rlcluster.networks.policy import ActorCritic, make_policy
from rlcluster.settings.loading import load_settings

N, T, SEED = 4, 32, 3
ENV = {"env.name": "CartPole-v1", "env.num_envs": N, "env.seed": SEED, "training.n_steps": T}


def two_policies(settings) -> tuple[Learner, ActorCritic, object]:
    """A learner, a policy with the same parameters, and an actor."""
    actor = make_actor(settings, range(N), None)
    policy, twin = (make_policy(settings.policy, actor.environments.spec, SEED) for _ in range(2))
    return Learner(settings, Model(settings, policy, range(N), Ranks()), Ranks()), twin, actor


def assert_same(learner: Learner, policy: ActorCritic) -> None:
    for ours, theirs in zip(learner.model.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def scaled(rewards: torch.Tensor, dones: torch.Tensor, gamma: float, clip: float) -> torch.Tensor:
    """Rewards over the deviation of the discounted return, of a run that begins."""
    running, returns = torch.zeros(N, dtype=torch.float64), []
    for t in range(T):
        running = running * gamma + rewards[t]
        returns.append(running)
        running = running * (~dones[t])
    return (rewards / math.sqrt(torch.stack(returns).var(correction=0) + 1e-8)).clamp(-clip, clip)


def test_the_learner_does_one_update_of_ppo() -> None:
    n_epochs, num_minibatches, learning_rate, gamma, lambda_, clip = 3, 4, 1e-3, 0.99, 0.95, 0.2
    flags = {
        **{"training.n_epochs": n_epochs, "training.n_minibatches": num_minibatches, "training.gamma": gamma},
        **{"training.learning_rate": learning_rate, "training.gae_lambda": lambda_, "training.clip_range": clip},
        **{"training.clip_value_range": clip, "training.max_grad_norm": 0.5, "training.reward_clip": 10},
        **{"training.entropy_coefficient": 0.01, "training.value_coefficient": 0.5},
    }
    learner, policy, actor = two_policies(load_settings("ppo", flags={**ENV, **flags}))
    rollout, _ = actor.collect(learner.model.policy, 0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate, eps=1e-5)

    # Generalised advantage estimation.
    rewards = scaled(rollout.rewards, rollout.dones, gamma, 10)
    advantages, advantage = torch.zeros(T, N), torch.zeros(N)
    for t in reversed(range(T)):
        delta = rewards[t] + gamma * rollout.next_values[t] - rollout.values[t]
        advantage = delta + gamma * lambda_ * (~rollout.dones[t]) * advantage
        advantages[t] = advantage
    returns = advantages + rollout.values

    for epoch in range(n_epochs):
        # Each environment's steps in an order of its own; a minibatch has as many steps of each.
        orders = np.stack([generator(SEED, Purpose.SHUFFLE, env, epoch).permutation(T) for env in range(N)], 1)
        for steps in np.split(orders, num_minibatches):
            t, n = torch.from_numpy(steps).flatten(), torch.arange(N).repeat(len(steps))
            logits, values = policy(rollout.observations[t, n])
            distribution = torch.distributions.Categorical(logits=logits)
            ratio = (distribution.log_prob(rollout.actions[t, n]) - rollout.log_probs[t, n]).exp()
            chosen = advantages[t, n]
            chosen = (chosen - chosen.mean()) / (chosen.std(correction=0) + 1e-8)
            policy_loss = -torch.min(ratio * chosen, ratio.clamp(1 - clip, 1 + clip) * chosen).mean()
            clipped = rollout.values[t, n] + (values - rollout.values[t, n]).clamp(-clip, clip)
            errors = torch.max((values - returns[t, n]) ** 2, (clipped - returns[t, n]) ** 2)
            loss = policy_loss + 0.5 * 0.5 * errors.mean() - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()

    report = learner.learn([rollout], 0.0)
    assert_same(learner, policy)
    assert (learner.model.updates, learner.model.steps_global) == (1, T * N)
    assert report.learning_rate == learning_rate


def test_the_learner_does_one_update_of_impala() -> None:
    """The policy has moved since it acted, so that the ratios matter."""
    learning_rate, gamma, lambda_, rho_bar, c_bar, entropy_coefficient = 1e-3, 0.99, 0.9, 1.0, 0.9, 0.02
    flags = {
        **{"training.learning_rate": learning_rate, "training.gamma": gamma, "training.gae_lambda": lambda_},
        **{"training.rho_bar": rho_bar, "training.c_bar": c_bar, "training.max_grad_norm": 0.5},
        **{"training.entropy_coefficient": entropy_coefficient, "training.value_coefficient": 0.5},
        **{"training.reward_clip": 10, "training.optimizer": "rmsprop", "training.normalize_advantages": "no"},
        **{"training.n_minibatches": 1, "training.clip_range": "null"},
    }
    learner, policy, actor = two_policies(load_settings("impala", flags={**ENV, **flags}))
    rollout, _ = actor.collect(learner.model.policy, 0)
    torch.manual_seed(7)
    with torch.no_grad():
        for ours, theirs in zip(learner.model.policy.parameters(), policy.parameters(), strict=True):
            theirs.copy_(ours.add_(0.2 * torch.randn_like(ours)))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=learning_rate, alpha=0.99, eps=1e-5)

    rewards = scaled(rollout.rewards, rollout.dones, gamma, 10)
    logits, values = policy(rollout.observations.flatten(0, 1))
    logits, values = logits.view(T, N, -1), values.view(T, N)
    distribution = torch.distributions.Categorical(logits=logits)
    log_probs = distribution.log_prob(rollout.actions)

    # V-trace, backwards in time. Where an episode ends, the rollout knows the value that follows.
    with torch.no_grad():
        ratios = (log_probs - rollout.log_probs).exp()
        next_value = policy(rollout.last_observations).values
        next_target = next_value
        targets, advantages = torch.zeros(T, N), torch.zeros(T, N)
        for t in reversed(range(T)):
            next_value = torch.where(rollout.dones[t], rollout.next_values[t], next_value)
            next_target = torch.where(rollout.dones[t], rollout.next_values[t], next_target)
            rho, c = ratios[t].clamp(max=rho_bar), lambda_ * ratios[t].clamp(max=c_bar)
            delta = rho * (rewards[t] + gamma * next_value - values[t])
            targets[t] = values[t] + delta + gamma * c * (next_target - next_value)
            advantages[t] = rho * (rewards[t] + gamma * next_target - values[t])
            next_value, next_target = values[t], targets[t]

    loss = -(advantages * log_probs).mean() + 0.5 * 0.5 * ((values - targets) ** 2).mean()
    loss = loss - entropy_coefficient * distribution.entropy().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()

    report = learner.learn([rollout], 0.0)
    assert_same(learner, policy)
    torch.testing.assert_close(report.grad_norm, norm.item(), rtol=1e-4, atol=0)
