"""Actor: environments + policy -> Rollout and finished episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcluster import environments
from rlcluster.environments.interface import Step, VectorEnvironment
from rlcluster.environments.randomness import Purpose, generator
from rlcluster.learning.actor_state import ActorState
from rlcluster.learning.rollout import Rollout, RolloutShape
from rlcluster.networks.policy import Policy, log_probs_of, sample_actions
from rlcluster.runs.episodes import Episode
from rlcluster.settings.schema import Settings
from rlcluster.system.phases import clock


class Collected(NamedTuple):
    """What an actor returns."""

    rollout: Rollout
    episodes: list[Episode]  # finished in the rollout


def make_actor(settings: Settings, envs: range, restored: ActorState | None, num_threads: int = 1) -> Actor:
    """An actor for these environments that resumes from `restored`. Simulators whose state could not be saved start
    other episodes than at the start of the run.
    """
    needs_new_episodes = restored is not None and restored.simulators is None
    position = int(restored.rollouts.max()) if restored is not None and needs_new_episodes else 0
    vector = environments.make(settings.env, envs, position=position, num_threads=num_threads)
    actor = Actor(vector, settings.training.n_steps, settings.env.seed, settings.traits.targets != "vtrace")
    if restored is not None:
        actor.restore(restored)
    return actor


class Actor:
    """Plays environments, all in one batch per step."""

    def __init__(self, environments: VectorEnvironment, n_steps: int, seed: int, values_end: bool = True) -> None:
        """Without `values_end` the bootstrap value after the last step is 0 here: the learner computes it."""
        self.environments, self._values_end = environments, values_end
        self._seed = seed
        self._shape = RolloutShape(n_steps, environments.num_envs, environments.spec)
        self._own: Rollout | None = None
        self._episode_rewards = np.zeros(environments.num_envs)
        self._episode_lengths = np.zeros(environments.num_envs, np.int64)
        self._rollouts = np.zeros(environments.num_envs, np.int64)

    @torch.inference_mode()
    def collect(
        self,
        policy: Policy,
        version: int,
        is_over: Callable[[int], bool] | None = None,
        into: Rollout | None = None,
    ) -> Collected:
        """Plays the next rollout with a policy of `version` updates; ends it early if `is_over` says so after a step.
        Writes it `into` the given rollout, or into a buffer that the next call overwrites.
        """
        with clock("episodes"):
            rollout = into or self._own_rollout()
            rollout.envs.copy_(torch.tensor(self.environments.indices))
            rollout.versions.fill_(version)
            noise = self._action_noise()
            self._rollouts += 1
            terminated = torch.zeros_like(rollout.dones)  # [T, N]
        final_observations: dict[tuple[int, int], Any] = {}
        episodes: list[Episode] = []
        for t in range(rollout.n_steps):
            with clock("step"):
                actions = self._choose_actions(rollout, t, policy, noise[t])
                with clock("simulator", len(actions)):
                    step = self.environments.step(actions.numpy())
                with clock("episodes"):
                    rollout.rewards[t] = torch.from_numpy(step.rewards)
                    terminated[t] = torch.from_numpy(step.terminated)
                    rollout.dones[t] = torch.from_numpy(step.terminated | step.truncated)
                    episodes += self._finished_episodes(t, step)
                    final_observations.update({(t, k): last for k, last in step.final_observations.items()})
            if is_over is not None and is_over(t + 1):
                rollout, terminated = rollout.first(t + 1), terminated[: t + 1]
                break
        with clock("act"):
            self._set_next_values(rollout, policy, terminated, final_observations)
        return Collected(rollout, episodes)

    def _choose_actions(self, rollout: Rollout, t: int, policy: Policy, noise: Tensor) -> Tensor:
        """[N] for step t, from the observations; fills the rollout's columns that are known before the step."""
        with clock("copy"):
            rollout.observations[t] = torch.from_numpy(self.environments.observations)
        with clock("act", rollout.num_envs):
            logits, rollout.values[t] = policy(rollout.observations[t])
        with clock("sample"):
            actions = sample_actions(logits, noise)
            rollout.actions[t], rollout.log_probs[t] = actions, log_probs_of(logits, actions)
        return actions

    def _own_rollout(self) -> Rollout:
        if self._own is None:
            with torch.inference_mode(False):  # the learner's gradients pass through it
                self._own = Rollout.allocate(*self._shape)
        return self._own

    def state(self) -> ActorState:
        return ActorState(
            self.environments.save(), self._episode_rewards.copy(), self._episode_lengths.copy(), self._rollouts.copy()
        )

    def restore(self, state: ActorState) -> None:
        """Resumes from a saved state. Environments without one start new episodes."""
        self._rollouts[:] = state.rollouts
        if state.simulators is not None:
            self.environments.restore(state.simulators)
            self._episode_rewards[:] = state.episode_rewards
            self._episode_lengths[:] = state.episode_lengths

    def _action_noise(self) -> Tensor:
        """[T, N] uniform in [0, 1): environment i's depend on the seed, i and the number of its rollouts alone."""
        places = zip(self.environments.indices, self._rollouts.tolist(), strict=True)
        streams = (generator(self._seed, Purpose.ACTIONS, i, rollouts) for i, rollouts in places)
        columns = [stream.random(self._shape.n_steps) for stream in streams]
        return torch.from_numpy(np.stack(columns, 1))

    def _finished_episodes(self, t: int, step: Step) -> list[Episode]:
        self._episode_rewards += step.rewards
        self._episode_lengths += 1
        ended = np.flatnonzero(step.terminated | step.truncated).tolist()
        rewards, lengths = self._episode_rewards[ended].tolist(), self._episode_lengths[ended].tolist()
        self._episode_rewards[ended] = 0.0
        self._episode_lengths[ended] = 0
        indices = [int(self.environments.indices[k]) for k in ended]
        return [Episode(t, *one) for one in zip(indices, rewards, lengths, strict=True)]

    def _set_next_values(
        self,
        rollout: Rollout,
        policy: Policy,
        terminated: Tensor,
        final_observations: dict[tuple[int, int], Any],
    ) -> None:
        """V of the state after each step: 0 where the episode terminated, of the true last state where truncated."""
        rollout.next_values[:-1] = rollout.values[1:]
        rollout.last_observations.copy_(torch.from_numpy(self.environments.observations))
        rollout.next_values[-1] = policy(rollout.last_observations).values if self._values_end else 0.0
        rollout.next_values[terminated] = 0.0
        if final_observations:
            last = torch.from_numpy(np.stack(list(final_observations.values())))
            steps, envs = zip(*final_observations, strict=True)
            rollout.next_values[list(steps), list(envs)] = policy(last).values
