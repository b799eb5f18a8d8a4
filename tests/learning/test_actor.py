"""The actor: what it records, and what does not depend on how environments are partitioned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcluster import environments
from rlcluster.learning.actor import Actor
from rlcluster.learning.rollout import Rollout
from rlcluster.networks.policy import make_policy
from rlcluster.runs.episodes import Episode
from rlcluster.settings.schema import EnvSettings, PolicySettings

SEED = 3


def collect(name: str, indices: range, n_steps: int = 24, updates: int = 2) -> tuple[list[Rollout], Actor]:
    """Copies of the first rollouts of a fixed policy."""
    settings = EnvSettings(name=name, seed=SEED)
    vector = environments.make(settings, indices)
    policy = make_policy(PolicySettings(network="nature" if vector.spec.is_image else "mlp"), vector.spec, SEED)
    actor = Actor(vector, n_steps, SEED)
    rollouts = []
    for update in range(updates):
        rollout, _ = actor.collect(policy, update)
        rollouts.append(Rollout(**{name: value.clone() for name, value in vars(rollout).items()}))
    return rollouts, actor


@pytest.mark.parametrize("name", ["coinrun", "CartPole-v1"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_sixteen_environments_act_alike_however_they_are_partitioned(name: str, ranks: int) -> None:
    together, _ = collect(name, range(16))
    size = 16 // ranks
    parts = [collect(name, range(rank * size, (rank + 1) * size))[0] for rank in range(ranks)]
    for update, whole in enumerate(together):
        for field in ("observations", "actions", "rewards", "dones"):
            joined = torch.cat([getattr(part[update], field) for part in parts], dim=1)
            assert torch.equal(getattr(whole, field), joined), field


def test_values_after_a_step_are_those_of_the_next_observation_and_zero_at_the_end() -> None:
    (rollout, _), _ = collect("CartPole-v1", range(8), n_steps=64)
    ended = rollout.dones[:-1]
    assert ended.any()
    assert torch.equal(rollout.next_values[:-1][~ended], rollout.values[1:][~ended])
    assert not rollout.next_values[:-1][ended].any()
    assert rollout.next_values[-1][~rollout.dones[-1]].all()


def test_a_truncated_step_is_followed_by_the_value_of_the_true_last_observation() -> None:
    """MountainCar is cut off at step 200; the policy's value of its true last observation is the bootstrap."""
    settings = EnvSettings(name="MountainCar-v0", seed=SEED)
    vector = environments.make(settings, range(2))
    policy = make_policy(PolicySettings(), vector.spec, SEED)
    last: dict[int, np.ndarray] = {}
    step = vector.step

    def watch(actions: np.ndarray) -> object:
        result = step(actions)
        last.update({k: observation.copy() for k, observation in result.final_observations.items()})
        return result

    vector.step = watch  # type: ignore[method-assign, assignment]
    rollout, _ = Actor(vector, 210, SEED).collect(policy, 0)
    assert rollout.dones[199].all()
    expected = policy(torch.from_numpy(np.stack([last[0], last[1]]))).values
    assert torch.equal(rollout.next_values[199], expected)


def test_log_probs_are_those_of_the_actions_taken() -> None:
    (rollout, _), actor = collect("CartPole-v1", range(2), n_steps=8, updates=2)
    policy = make_policy(PolicySettings(network="mlp"), actor.environments.spec, SEED)
    logits = policy(rollout.observations.flatten(0, 1)).logits.detach()
    expected = torch.log_softmax(logits, -1)[torch.arange(16), rollout.actions.flatten()]
    torch.testing.assert_close(rollout.log_probs.flatten(), expected)


def test_every_finished_episode_is_reported_once_with_its_raw_reward() -> None:
    vector = environments.make(EnvSettings(name="CartPole-v1", seed=SEED), range(4, 8))
    policy = make_policy(PolicySettings(network="mlp"), vector.spec, SEED)
    actor = Actor(vector, 100, SEED)
    lengths = dict.fromkeys(range(4, 8), 0)  # of the episode under way
    for update in range(2):
        rollout, episodes = actor.collect(policy, update)
        expected = []
        for t, dones in enumerate(rollout.dones.tolist()):
            for env, done in zip(range(4, 8), dones, strict=True):
                lengths[env] += 1
                if done:
                    expected.append(Episode(t, env, float(lengths[env]), lengths[env]))  # CartPole gives 1 per step
                    lengths[env] = 0
        assert episodes == expected != []


@pytest.mark.parametrize("name", ["coinrun", "CartPole-v1"])
def test_a_restored_actor_resumes_as_if_nothing_had_happened(name: str) -> None:
    _, actor = collect(name, range(3), updates=1)
    state = actor.state()
    policy = make_policy(
        PolicySettings(network="nature" if name == "coinrun" else "mlp"), actor.environments.spec, SEED
    )
    rollout, expected_episodes = actor.collect(policy, 1)
    expected = {name: value.clone() for name, value in vars(rollout).items()}
    other = Actor(environments.make(EnvSettings(name=name, seed=77), range(3)), 24, SEED)
    other.restore(state)
    rollout, episodes = other.collect(policy, 1)
    for field, value in vars(rollout).items():
        assert torch.equal(value, expected[field]), field
    assert episodes == expected_episodes
