"""The learner: its minibatches, its gradients, its optimiser's step, its refusals."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import Actor, make_actor
from rlcluster.learning.learner import Learner, LearnReport, NotFiniteError
from rlcluster.learning.minibatches import Minibatches
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.sums import explained_variance, information
from rlcluster.learning.targets import Targets
from rlcluster.networks.policy import make_policy
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings, setting_fields

PLAIN_IMPALA = {
    **{"training.n_minibatches": 1, "training.clip_range": "null", "training.optimizer": "rmsprop"},
    **{"training.normalize_advantages": "no", "training.value_coefficient": 0.5},
}
SMALL = {"env.name": "CartPole-v1", "env.num_envs": 4, "training.n_steps": 16, "training.batch_size": 32}


def settings_for(algorithm: str = "ppo", **changes: Any) -> Settings:
    flags = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    if algorithm != "ppo":
        flags.pop("training.batch_size", None)
    if algorithm == "impala":
        flags = {**PLAIN_IMPALA, **flags}
    return load_settings(algorithm, flags=flags)


def start(settings: Settings) -> tuple[Learner, Actor]:
    actor = make_actor(settings, range(settings.env.num_envs), None)
    policy = make_policy(settings.policy, actor.environments.spec, settings.env.seed)
    return Learner(settings, Model(settings, policy, range(settings.env.num_envs), Ranks()), Ranks()), actor


def minibatches_of(settings: Settings, envs: range) -> Minibatches:
    policy = make_policy(settings.policy, environments.describe(settings.env), 0)
    return Minibatches(settings, Model(settings, policy, envs, Ranks()), Ranks(), chunk_size=1000)


def targets_of(learner: Learner, rollout: Rollout) -> Targets:
    settings = learner._settings
    source = Minibatches(settings, learner.model, Ranks(), chunk_size=1000)
    return source.targets(rollout, *learner._rewards([rollout]))


def run(settings: Settings, updates: int = 2, progress: float = 0.5) -> tuple[Learner, list[LearnReport]]:
    learner, actor = start(settings)
    reports = [
        learner.learn([actor.collect(learner.model.policy, learner.model.updates).rollout], progress)
        for _ in range(updates)
    ]
    return learner, reports


def parameters(learner: Learner) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in learner.model.policy.parameters()])


def gradients(settings: Settings) -> torch.Tensor:
    """Of the whole rollout at once: one minibatch."""
    learner, actor = start(settings)
    rollout = actor.collect(learner.model.policy, 0).rollout
    (batch,) = learner._make_update([rollout], [rollout.rewards]).batches(0)
    learner.compute_gradients(batch)
    return learner.model.flat.gradients.clone()


def whole_rollout(algorithm: str, **changes: Any) -> Settings:
    return settings_for(algorithm, **({"training__batch_size": 64} if algorithm == "ppo" else {}), **changes)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_gradients_in_chunks_equal_gradients_at_once(algorithm: str, chunk_size: int) -> None:
    whole = gradients(whole_rollout(algorithm, hardware__chunk_size=1000))
    chunks = gradients(whole_rollout(algorithm, hardware__chunk_size=chunk_size))
    torch.testing.assert_close(chunks, whole, rtol=1e-4, atol=1e-6)


def test_a_network_for_images_gives_the_same_gradients_in_chunks() -> None:
    image = {"env__name": "coinrun", "policy__network": "impala", "training__n_steps": 4, "training__batch_size": 16}
    whole = gradients(settings_for(**image, hardware__chunk_size=16))
    chunks = gradients(settings_for(**image, hardware__chunk_size=5))
    torch.testing.assert_close(chunks, whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_one_plain_step_equals_the_same_step_written_with_torch_alone(name: str) -> None:
    """One epoch, one minibatch, no normalisation: the literal mean loss, clipped with torch's own function."""
    changes: dict[str, Any] = {"training__n_epochs": 1, "training__batch_size": 64, "training__normalize_rewards": "no"}
    changes["training__optimizer"] = name
    settings = settings_for(**changes, training__normalize_advantages="no", training__max_grad_norm=0.05)
    learner, actor = start(settings)
    rollout = actor.collect(learner.model.policy, 0).rollout
    twin = make_policy(settings.policy, actor.environments.spec, settings.env.seed)
    optimizer = {
        "adam": torch.optim.Adam(twin.parameters(), lr=5e-4, eps=1e-5),
        "rmsprop": torch.optim.RMSprop(twin.parameters(), lr=5e-4, alpha=0.99, eps=1e-5),
    }[name]
    targets = targets_of(learner, rollout)
    output = twin(rollout.observations.flatten(0, 1))
    distribution = torch.distributions.Categorical(logits=output.logits)
    ratio = (distribution.log_prob(rollout.actions.flatten()) - rollout.log_probs.flatten()).exp()
    advantages, returns = targets.advantages.flatten(), targets.returns.flatten()
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    value_loss = 0.5 * (output.values - returns).square().mean()
    (policy_loss + 0.5 * value_loss - 0.01 * distribution.entropy().mean()).backward()
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
    optimizer.step()
    report = learner.learn([rollout], 0.0)
    assert report.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert report.policy_loss == pytest.approx(policy_loss.item(), abs=1e-6)
    assert report.value_loss == pytest.approx(value_loss.item(), rel=1e-5)
    for ours, theirs in zip(learner.model.policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_minibatches_hold_every_sample_once_and_as_many_of_each_environment() -> None:
    source = minibatches_of(settings_for(), range(4))
    minibatches = source.slices(0, 16)
    assert [len(indices) for indices in minibatches] == [32, 32]
    assert sorted(torch.cat(minibatches).tolist()) == list(range(64))
    for indices in minibatches:
        assert torch.bincount(indices % 4).tolist() == [8, 8, 8, 8]
    assert not torch.equal(minibatches[0], source.slices(1, 16)[0])


def test_the_global_minibatch_is_the_same_however_environments_are_partitioned() -> None:
    settings = settings_for()
    whole = minibatches_of(settings, range(4)).slices(0, 16)
    for k, expected in enumerate(whole):
        found = set()
        for share in (range(2), range(2, 4)):
            part = minibatches_of(settings, share).slices(0, 16)[k]
            found |= {(int(i) // 2, share[int(i) % 2]) for i in part}
        assert found == {(int(i) // 4, int(i) % 4) for i in expected}


def test_advantages_are_normalised_over_the_minibatch() -> None:
    """Two steps of two environments in two minibatches of a step each, whichever comes first."""
    source = minibatches_of(settings_for(env__num_envs=2, training__n_steps=2, training__batch_size=2), range(2))
    slices = source.slices(0, 2)
    statistics = source.statistics(slices, torch.tensor([1.0, 3.0, 10.0, 30.0]))
    for indices, found in zip(slices, statistics, strict=True):
        one, other = (float([1, 3, 10, 30][i]) for i in indices)
        assert (found.num_samples, found.normal.mean) == (2, (one + other) / 2)
        assert found.normal.std == pytest.approx(abs(one - other) / 2)


# IMPALA


@pytest.mark.parametrize("normalised", ["no", "yes"])
def test_impala_without_lag_equals_a2c(normalised: str) -> None:
    """The policies agree and lambda is 1: V-trace gives n-step returns, and both losses are the same."""
    same = {
        **{"training__learning_rate": 1e-3, "training__gamma": 0.99, "training__gae_lambda": 1},
        **{"training__entropy_coefficient": 0.01, "training__normalize_rewards": "yes"},
        "training__normalize_advantages": normalised,
    }
    a2c, a2c_reports = run(settings_for("a2c", **same), updates=3)
    impala, impala_reports = run(settings_for("impala", **same), updates=3)
    torch.testing.assert_close(parameters(impala), parameters(a2c), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(impala_reports, a2c_reports, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


CLIPPED = {"training.clip_range": 0.2, "training.clip_value_range": 0.2, "training.optimizer": "adam"}


def test_clipped_impala_without_lag_equals_ppo_with_the_same_minibatches() -> None:
    """The policies agree and lambda is 1: V-trace's advantages and returns are GAE's, and so is all that follows."""
    same = {
        **{"training__learning_rate": 1e-3, "training__gamma": 0.99, "training__gae_lambda": 1},
        **{"training__n_epochs": 2, "training__batch_size": 16, "training__normalize_advantages": "yes"},
        "training__value_coefficient": 0.5,
    }
    ppo, ppo_reports = run(settings_for("ppo", **same), updates=3)
    flags = {**SMALL, **CLIPPED, **{key.replace("__", "."): value for key, value in same.items()}}
    impala, impala_reports = run(load_settings("impala", flags=flags), updates=3)
    torch.testing.assert_close(parameters(impala), parameters(ppo), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(impala_reports, ppo_reports, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("clip_range", ["null", 0.2])
def test_minibatches_of_impala_hold_every_sample_once_with_the_targets_of_the_start(clip_range: Any) -> None:
    """Two rollouts of two environments each, as from two actors: samples if clipped, else whole trajectories."""
    flags = {**SMALL, "training.batch_size": 32, "training.clip_range": clip_range, "training.n_epochs": 2}
    settings = load_settings("impala", flags=flags)
    learner, actor = start(settings)
    whole = actor.collect(learner.model.policy, 0).rollout
    parts = [whole.of(range(2)), whole.of(range(2, 4))]
    update = learner._make_update(parts, [part.rewards for part in parts])
    for epoch in range(2):
        batches = update.batches(epoch)
        assert [batch.num_samples for batch in batches] == [32, 32]
        indices = torch.cat([batch.indices for batch in batches])
        assert sorted(indices.tolist()) == list(range(64))
        for batch in batches:
            counts = torch.bincount(batch.indices % 4, minlength=4).tolist()
            assert counts == [8] * 4 if clip_range != "null" else sorted(counts) == [0, 0, 16, 16]
            rows = batch.observations[batch.indices]
            expected = whole.observations.flatten(0, 1)[batch.indices]
            assert torch.equal(rows, expected)
    assert not torch.equal(update.batches(0)[0].indices, update.batches(1)[0].indices)


def lagged(**changes: Any) -> tuple[Learner, Rollout]:
    """A learner whose policy has moved since the rollout was collected."""
    learner, actor = start(settings_for("impala", training__normalize_rewards="no", **changes))
    rollout = actor.collect(learner.model.policy, 0).rollout
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in learner.model.policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return learner, rollout


class LiteralTargets(NamedTuple):
    rhos: Tensor  # [T, N]
    advantages: Tensor  # [T, N] without rho
    returns: Tensor  # [T, N]


def literal_targets(rollout: Rollout, learner: Learner, values: Tensor, log_probs: Tensor) -> LiteralTargets:
    """V-trace by its recursion, of the values and log-probabilities [T, N] of the policy that learns."""
    gamma, lambda_ = learner._training.gamma, learner._training.gae_lambda
    with torch.no_grad():
        rhos = (log_probs - rollout.log_probs).exp().clamp(max=1.0)
        assert (rhos < 0.9).any()
        last = learner.model.policy(rollout.last_observations).values
        after = torch.cat([values[1:], last.unsqueeze(0)])
        after = torch.where(rollout.dones, rollout.next_values, after)
        targets, following = torch.zeros_like(values), last
        advantages = torch.zeros_like(values)
        for t in reversed(range(rollout.n_steps)):
            following = torch.where(rollout.dones[t], rollout.next_values[t], following)
            advantages[t] = rollout.rewards[t] + gamma * following - values[t]
            # v = V + rho (r + gamma V' - V) + gamma c (v' - V'), where both primes are the same at an end
            difference = rhos[t] * (rollout.rewards[t] + gamma * after[t] - values[t])
            targets[t] = values[t] + difference + gamma * lambda_ * rhos[t] * (following - after[t])
            following = targets[t]
    return LiteralTargets(rhos, advantages, targets)


def normal(advantages: Tensor) -> Tensor:
    return (advantages - advantages.mean()) / advantages.std(correction=0)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 40, 1000])
def test_impala_with_lag_equals_the_literal_loss(chunk_size: int, normalised: bool) -> None:
    """Written with torch alone on the whole rollout: V-trace by its recursion, the mean of the three losses."""
    learner, rollout = lagged(
        **{"hardware__chunk_size": chunk_size, "training__normalize_advantages": normalised},
        **{"training__gamma": 0.99, "training__gae_lambda": 0.9, "training__entropy_coefficient": 0.02},
    )
    output = learner.model.policy(rollout.observations.flatten(0, 1))
    values = output.values.view(rollout.n_steps, -1)
    distribution = torch.distributions.Categorical(logits=output.logits.view(rollout.n_steps, 4, -1))
    log_probs = distribution.log_prob(rollout.actions)
    targets = literal_targets(rollout, learner, values, log_probs)
    advantages = targets.rhos * targets.advantages
    policy_loss = -((normal(advantages) if normalised else advantages) * log_probs).mean()
    value_loss = 0.5 * (values - targets.returns).square().mean()
    (policy_loss + 0.5 * value_loss - 0.02 * distribution.entropy().mean()).backward()
    assert_learns(learner, rollout, policy_loss, value_loss)


@pytest.mark.parametrize("normalised", [False, True])
def test_clipped_impala_with_lag_limits_the_ratio_to_the_policy_that_acted(normalised: bool) -> None:
    """Also before its first step. The ratio corrects for the lag; advantages have no rho."""
    learner, rollout = lagged(
        **{"training__clip_range": 0.1, "training__clip_value_range": "null", "training__optimizer": "adam"},
        **{"training__gamma": 0.99, "training__gae_lambda": 0.9, "training__entropy_coefficient": 0.02},
        training__normalize_advantages=normalised,
    )
    output = learner.model.policy(rollout.observations.flatten(0, 1))
    values = output.values.view(rollout.n_steps, -1)
    distribution = torch.distributions.Categorical(logits=output.logits.view(rollout.n_steps, 4, -1))
    log_probs = distribution.log_prob(rollout.actions)
    targets = literal_targets(rollout, learner, values, log_probs)
    advantages = normal(targets.advantages) if normalised else targets.advantages
    ratios = (log_probs - rollout.log_probs).exp()
    assert ((ratios - 1).abs() > 0.1).any()
    policy_loss = -torch.min(ratios * advantages, ratios.clamp(0.9, 1.1) * advantages).mean()
    value_loss = 0.5 * (values - targets.returns).square().mean()
    (policy_loss + 0.5 * value_loss - 0.02 * distribution.entropy().mean()).backward()
    assert_learns(learner, rollout, policy_loss, value_loss)


def assert_learns(learner: Learner, rollout: Rollout, policy_loss: Tensor, value_loss: Tensor) -> None:
    """With the gradients that the model has now."""
    expected = learner.model.flat.gradients.clone()
    report = learner.learn([rollout], 0.0)
    norm = expected.norm().item()
    assert report.grad_norm == pytest.approx(norm, rel=1e-4)
    assert report.policy_loss == pytest.approx(policy_loss.item(), rel=1e-4, abs=1e-6)
    assert report.value_loss == pytest.approx(value_loss.item(), rel=1e-4)
    torch.testing.assert_close(learner.model.flat.gradients, expected * min(1.0, 0.5 / norm), rtol=1e-3, atol=1e-5)


CHANGED = {
    "training.anneal_learning_rate": "true",
    "training.normalize_advantages": "false",
    "training.normalize_rewards": "false",
    "training.optimizer": "rmsprop",
    "training.learning_rate": 1e-3,
    "training.gamma": 0.9,
    "training.gae_lambda": 0.5,
    "training.entropy_coefficient": 0.3,
    "training.value_coefficient": 0.1,
    "training.max_grad_norm": 0.01,
    "training.clip_range": 0.001,
    "training.clip_value_range": 0.001,
    "training.target_kl": 1e-9,
    "training.reward_clip": 0.01,
    "training.adam_epsilon": 1e-2,
    "training.n_epochs": 2,
    "training.batch_size": 64,
    "policy.hidden_sizes": "8,8",
}


@pytest.mark.parametrize("key", CHANGED)
def test_every_setting_of_ppo_changes_what_is_learnt(key: str) -> None:
    default, _ = run(settings_for())
    changed, _ = run(settings_for(**{key.replace(".", "__"): CHANGED[key]}))
    assert not torch.equal(parameters(default), parameters(changed))


@pytest.mark.parametrize("key", ["training.rmsprop_decay", "training.rmsprop_epsilon", "training.gae_lambda"])
def test_settings_of_a2c_change_what_is_learnt(key: str) -> None:
    default, _ = run(settings_for("a2c"))
    changed, _ = run(settings_for("a2c", **{key.replace(".", "__"): 0.5}))
    assert not torch.equal(parameters(default), parameters(changed))


def test_no_boolean_setting_of_training_is_left_out_above() -> None:
    booleans = {f.key for f in setting_fields() if f.section == "training" and f.info.annotation is bool}
    assert booleans <= CHANGED.keys()


def test_the_learning_rate_falls_linearly_with_progress_if_asked() -> None:
    _, (report, _) = run(settings_for(training__anneal_learning_rate="true"), progress=0.25)
    assert report.learning_rate == pytest.approx(0.75 * 5e-4)
    _, (report, _) = run(settings_for(), progress=0.25)
    assert report.learning_rate == 5e-4


def test_target_kl_ends_the_update_after_the_epoch_that_exceeds_it() -> None:
    stopped, _ = run(settings_for(training__target_kl=1e-9), updates=1)
    one_epoch, _ = run(settings_for(training__n_epochs=1), updates=1)
    assert torch.equal(parameters(stopped), parameters(one_epoch))


@pytest.mark.parametrize("poison", ["rewards", "observations"])
def test_a_loss_that_is_not_finite_stops_before_the_optimisers_step(poison: str) -> None:
    learner, actor = start(settings_for(training__batch_size=64))
    rollout: Rollout = actor.collect(learner.model.policy, 0).rollout
    before = parameters(learner).clone()
    getattr(rollout, poison)[3, 1] = torch.nan
    with pytest.raises(NotFiniteError, match=r"loss is nan.*learning_rate=0.0005"):
        learner.learn([rollout], 0.0)
    assert torch.equal(parameters(learner), before)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
def test_a_restored_learner_continues_bit_for_bit(algorithm: str) -> None:
    settings = settings_for(algorithm)
    one, actor = start(settings)
    one.learn([actor.collect(one.model.policy, 0).rollout], 0.0)
    other, _ = start(settings.model_copy(update={"env": settings.env.model_copy(update={"seed": 9})}))
    other = Learner(settings, other.model, Ranks())
    other.model.restore(one.model.state())
    rollout = actor.collect(one.model.policy, 1).rollout
    assert one.learn([rollout], 0.0) == other.learn([rollout], 0.0)
    assert torch.equal(parameters(one), parameters(other))
    assert (other.model.updates, other.model.steps_global) == (2, 128)


def test_explained_variance_by_hand() -> None:
    """Returns 1 and 3 (variance 1), errors of the value 0 and 1 (variance 1/4)."""
    assert explained_variance(torch.tensor([0 + 1, 0 + 1, 1 + 3, 1 + 9]), 2) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([0, 0, 4, 10]), 2) == 1.0
    assert explained_variance(torch.tensor([1, 1, 2, 2]), 2) is None


def test_action_information_is_zero_for_a_blind_policy_and_log_a_for_one_that_always_looks() -> None:
    """Two samples, two actions. Blind: both 1/2, 1/2. Looking: one sample takes the first action, one the second."""
    entropy = {"blind": 2 * math.log(2), "looking": 0.0, "between": 2 * (0.25 * math.log(4) + 0.75 * math.log(4 / 3))}
    expected = {"blind": 0.0, "looking": math.log(2), "between": math.log(2) - entropy["between"] / 2}
    for name, total in entropy.items():  # the marginal is 1/2, 1/2 in all three
        totals = torch.tensor([0.0, 0.0, 0.0, total, 0.0, 0.0, 2.0, 1.0, 1.0], dtype=torch.float64)
        assert information(totals) == pytest.approx(expected[name])


def test_action_information_of_an_update_is_that_of_its_logits() -> None:
    settings = whole_rollout("a2c")
    learner, actor = start(settings)
    with torch.no_grad():
        learner.model.policy.policy_head.weight.mul_(300)  # else the policy is almost uniform
    rollout = actor.collect(learner.model.policy, 0).rollout
    policy = torch.softmax(learner.model.policy(rollout.observations.flatten(0, 1)).logits.detach().double(), -1)
    marginal = policy.mean(0)
    expected = -(marginal * marginal.log()).sum() + (policy * policy.log()).sum(-1).mean()
    assert expected > 0.01
    assert learner.learn([rollout], 0.0).action_information == pytest.approx(float(expected), rel=1e-4)
