"""Stable-Baselines3's PPO on one workload: prints {"fps": ...}, rollout and learning included.

Run by peers.py with the Python of .venv-peers and the same flags as `rlcluster train`. peers.py also sets
OMP_NUM_THREADS and the like before this process imports torch. The first update is a warm-up and excluded.

In SB3's favour: no Monitor around the environments, no logger, all Procgen environments in one engine with its own
threads, frames transposed by SB3's own wrapper (a view, not a copy). SB3's defaults kept: undivided minibatches, and
torch's default memory layout (NCHW); channels-last would make the impala network faster.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn
from torch.nn import functional

from peer_options import engine_threads, parse_options

NETWORKS = ("impala", "nature", "mlp")


def main() -> None:
    options = parse_options(__doc__, NETWORKS)
    torch.set_num_threads(options.num_threads)
    environments = make_environments(options)
    model = make_model(options, environments)
    rollout_size = options.num_envs * options.n_steps
    model.learn(rollout_size)
    steps = rollout_size * (options.total_updates - 1)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)  # continues: the environments are not reset
    seconds = time.perf_counter() - start
    assert model.num_timesteps == rollout_size + steps
    environments.close()
    print(json.dumps({"fps": steps / seconds}))


def make_model(options: argparse.Namespace, environments: VecEnv) -> PPO:
    return PPO(
        "MlpPolicy" if options.network == "mlp" else "CnnPolicy",
        environments,
        learning_rate=options.learning_rate,
        n_steps=options.n_steps,
        batch_size=options.batch_size,
        n_epochs=options.n_epochs,
        gamma=options.gamma,
        gae_lambda=options.gae_lambda,
        clip_range=options.clip_range,
        clip_range_vf=None,
        normalize_advantage=True,
        ent_coef=options.entropy_coefficient,
        vf_coef=options.value_coefficient / 2,  # SB3's value loss lacks the factor 1/2
        max_grad_norm=options.max_grad_norm,
        policy_kwargs=policy_arguments(options.network),
        seed=0,
        device="cpu",
    )


def policy_arguments(network: str) -> dict[str, Any]:
    """SB3's defaults for mlp equal ours: two towers of two layers of 64 tanh units, and Adam's epsilon 1e-5."""
    if network == "mlp":
        return {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    extractor = {"impala": ImpalaExtractor, "nature": NatureCNN}[network]
    return {"features_extractor_class": extractor, "net_arch": []}


class ImpalaExtractor(BaseFeaturesExtractor):
    """The IMPALA network (arXiv 1802.01561, figure 3). SB3 has divided the frames by 255."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 256) -> None:
        super().__init__(observation_space, features_dim)
        channels, height, width = observation_space.shape
        stages: list[nn.Module] = []
        for num_outputs in (16, 32, 32):
            convolution = nn.Conv2d(channels, num_outputs, 3, padding=1)
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            stages += [convolution, pool, ResidualBlock(num_outputs), ResidualBlock(num_outputs)]
            channels, height, width = num_outputs, (height + 1) // 2, (width + 1) // 2
        linear = nn.Linear(channels * height * width, features_dim)
        self.layers = nn.Sequential(*stages, nn.ReLU(), nn.Flatten(), linear, nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_channels, num_channels, 3, padding=1)
        self.second = nn.Conv2d(num_channels, num_channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.second(functional.relu(self.first(functional.relu(hidden))))


def make_environments(options: argparse.Namespace) -> VecEnv:
    if options.network == "mlp":
        return DummyVecEnv([lambda: gymnasium.make(options.env)] * options.num_envs)
    return ProcgenVecEnv(options)


class ProcgenVecEnv(VecEnv):
    """Procgen's engine behind SB3's interface. The engine resets finished episodes by itself."""

    def __init__(self, options: argparse.Namespace) -> None:
        from procgen import ProcgenGym3Env

        self._engine = ProcgenGym3Env(
            num=options.num_envs,
            env_name=options.env,
            num_levels=options.num_levels,
            start_level=options.start_level,
            distribution_mode=options.distribution_mode,
            num_threads=engine_threads(options.num_threads),
            rand_seed=0,
        )
        self._infos: list[dict[str, Any]] = [{} for _ in range(options.num_envs)]
        super().__init__(options.num_envs, spaces.Box(0, 255, (64, 64, 3), np.uint8), spaces.Discrete(15))

    def reset(self) -> NDArray[np.uint8]:
        return self._engine.observe()[1]["rgb"]  # a copy: gym3 keeps its own buffer

    def step_async(self, actions: NDArray[np.int64]) -> None:
        self._engine.act(actions.astype(np.int32))

    def step_wait(self) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        rewards, observations, first = self._engine.observe()
        return observations["rgb"], rewards, first, self._infos

    def close(self) -> None:
        self._engine.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None for _ in self._get_indices(indices)]  # SB3 queries the render mode: there is none

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(f"the engine has no attribute {attr_name}")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise NotImplementedError(f"the engine has no method {method_name}")

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


if __name__ == "__main__":
    main()
