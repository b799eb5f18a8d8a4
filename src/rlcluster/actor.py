"""Actor: environments + policy -> Rollout and finished episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcluster.collectives import Ranks, to_tensor
from rlcluster.environments.interface import Step, VectorEnvironment
from rlcluster.environments.randomness import Purpose, generator
from rlcluster.policy import ActorCritic, sample_actions
from rlcluster.rollout import Rollout, RolloutShape


class Actor:
    """Plays a rank's environments, all in one batch per step."""

    def __init__(self, environments: VectorEnvironment, n_steps: int, seed: int) -> None:
        self.environments = environments
        self._seed = seed
        self._shape = RolloutShape(n_steps, environments.num_envs, environments.spec)
        self._own: Rollout | None = None
        self._episode_rewards = np.zeros(environments.num_envs)
        self._episode_lengths = np.zeros(environments.num_envs, np.int64)
        self._finished: list[tuple[float, ...]] = []

    @torch.inference_mode()
    def collect(
        self,
        policy: ActorCritic,
        update: int,
        is_over: Callable[[int], bool] | None = None,
        into: Rollout | None = None,
    ) -> Rollout:
        """The rollout of one update, cut short if `is_over` says so after a step. It is written `into` the given one,
        or into one of its own, which the next call overwrites.
        """
        rollout = into or self._own_rollout()
        noise = self._action_noise(update)
        terminated = torch.zeros_like(rollout.dones)  # [T, N]
        final_observations: dict[tuple[int, int], Any] = {}
        for t in range(rollout.n_steps):
            rollout.observations[t] = torch.from_numpy(self.environments.observations)
            logits, rollout.values[t] = policy(rollout.observations[t])
            actions = sample_actions(logits, noise[t])
            log_probs = torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            rollout.actions[t], rollout.log_probs[t] = actions, log_probs
            step = self.environments.step(actions.numpy())
            rollout.rewards[t] = torch.from_numpy(step.rewards)
            terminated[t] = torch.from_numpy(step.terminated)
            rollout.dones[t] = torch.from_numpy(step.terminated | step.truncated)
            self._count_episodes(t, step)
            final_observations.update({(t, k): last for k, last in step.final_observations.items()})
            if is_over is not None and is_over(t + 1):
                rollout, terminated = rollout.first(t + 1), terminated[: t + 1]
                break
        self._set_next_values(rollout, policy, terminated, final_observations)
        return rollout

    def _own_rollout(self) -> Rollout:
        if self._own is None:
            with torch.inference_mode(False):  # the learner's gradients pass through it
                self._own = Rollout.allocate(*self._shape)
        return self._own

    def finished_episodes(self) -> Tensor:
        """[K, 4] step, environment, reward and length of each episode that finished since the last call."""
        episodes = torch.tensor(self._finished, dtype=torch.float64).reshape(-1, 4)
        self._finished.clear()
        return episodes

    def state(self, ranks: Ranks) -> dict[str, Any]:
        """What continues each environment of all ranks exactly where it is; no simulator states where some cannot be
        told.
        """
        states = self.environments.save()
        cannot_tell = ranks.any(states is None)
        return {
            "simulators": None if cannot_tell else [to_tensor(part) for part in ranks.gather_bytes(states or [])],
            "episode_rewards": ranks.gather_rows(torch.from_numpy(self._episode_rewards.copy())),
            "episode_lengths": ranks.gather_rows(torch.from_numpy(self._episode_lengths.copy())),
        }

    def restore(self, state: dict[str, Any]) -> bool:
        """Takes its own environments of a state; False if they could not tell theirs: they then begin new episodes."""
        if state["simulators"] is None:
            return False
        own = self.environments.indices
        self.environments.restore([state["simulators"][i].numpy().tobytes() for i in own])
        self._episode_rewards[:] = state["episode_rewards"].numpy()[own]
        self._episode_lengths[:] = state["episode_lengths"].numpy()[own]
        return True

    def _action_noise(self, update: int) -> Tensor:
        """[T, N] uniform in [0, 1): environment i's depend on (seed, i, update) alone."""
        streams = (generator(self._seed, Purpose.ACTIONS, i, update) for i in self.environments.indices)
        columns = [stream.random(self._shape.n_steps) for stream in streams]
        return torch.from_numpy(np.stack(columns, 1))

    def _count_episodes(self, t: int, step: Step) -> None:
        self._episode_rewards += step.rewards
        self._episode_lengths += 1
        for k in np.flatnonzero(step.terminated | step.truncated).tolist():
            reward, length = float(self._episode_rewards[k]), float(self._episode_lengths[k])
            self._finished.append((float(t), float(self.environments.indices[k]), reward, length))
            self._episode_rewards[k] = 0.0
            self._episode_lengths[k] = 0

    def _set_next_values(
        self,
        rollout: Rollout,
        policy: ActorCritic,
        terminated: Tensor,
        final_observations: dict[tuple[int, int], Any],
    ) -> None:
        """V of the state after each step: 0 where the episode terminated, of the true last state where truncated."""
        rollout.next_values[:-1] = rollout.values[1:]
        rollout.last_observations.copy_(torch.from_numpy(self.environments.observations))
        rollout.next_values[-1] = policy(rollout.last_observations).values
        rollout.next_values[terminated] = 0.0
        if final_observations:
            last = torch.from_numpy(np.stack(list(final_observations.values())))
            steps, envs = zip(*final_observations, strict=True)
            rollout.next_values[list(steps), list(envs)] = policy(last).values
