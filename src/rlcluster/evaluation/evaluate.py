"""Evaluate a checkpoint: play a fixed number of episodes; report the mean reward and its confidence interval."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlcluster import environments
from rlcluster.environments.interface import EnvironmentSpec, VectorEnvironment
from rlcluster.environments.randomness import Purpose, generator
from rlcluster.evaluation.frames import VIDEO_SUFFIXES, Screen, VideoFile
from rlcluster.networks.information import InformationMeter
from rlcluster.networks.policy import Policy, make_policy, sample_actions
from rlcluster.reports import statistics
from rlcluster.reports.output_paths import check_output_file
from rlcluster.runs.checkpoint import Checkpoint
from rlcluster.runs.checkpoints import find_checkpoint, latest_run
from rlcluster.runs.evaluations import write_evaluation
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import EnvSettings, KernelsName, Settings
from rlcluster.system.console import say, warn
from rlcluster.system.errors import UserError

MAX_ENVS = 64
FIRST_ENVIRONMENT = 1_000_000  # separate from training's indices, so the two never share a random stream
NOISE_BLOCK = 1024
LEVELS = ("test", "train", "both")
WIDTH = 60

# Called after each step with the environments, the number of finished episodes, and whether environment 0 was active.
OnStep = Callable[[VectorEnvironment, int, bool], None]


class Episodes(NamedTuple):
    """The results of all episodes, ordered by environment, then by time."""

    rewards: np.ndarray[Any, np.dtype[np.float64]]  # [K]
    lengths: np.ndarray[Any, np.dtype[np.int64]]  # [K]
    completed: np.ndarray[Any, np.dtype[np.bool_]] | None  # [K] whether the level was completed
    action_information: float  # nats; 0 for a policy that ignores its observations


class Agent(NamedTuple):
    """A trained policy and the settings it was trained with."""

    policy: Policy
    settings: Settings
    checkpoint: Path
    steps_global: int
    spec: EnvironmentSpec
    noise: np.random.Generator  # for sampled actions

    @torch.inference_mode()
    def act(self, observation: Any, deterministic: bool = False) -> Any:
        """The action for one observation, an int; or for a batch [B, ...] of them, an array [B]. `deterministic` takes
        the greedy action instead of a sampled one.
        """
        observations = self._as_array(observation)
        is_single = observations.shape == self.spec.observation_shape
        if not is_single and observations.shape[1:] != self.spec.observation_shape:
            raise UserError(
                f"act: the observation has shape {list(observations.shape)}; {self.settings.env.name} has "
                f"{list(self.spec.observation_shape)}, a batch one more dimension in front"
            )
        batch = np.ascontiguousarray(observations[None] if is_single else observations)
        logits = self.policy(torch.from_numpy(batch)).logits
        draws = torch.from_numpy(self.noise.random(len(batch)))
        actions = (logits.argmax(-1) if deterministic else sample_actions(logits, draws)).numpy()
        return int(actions[0]) if is_single else actions

    def _as_array(self, observation: Any) -> np.ndarray[Any, Any]:
        try:
            return np.asarray(observation, self.spec.observation_dtype)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"act: the observation is no array of {self.spec.observation_dtype} ({reason}); "
                f"{self.settings.env.name} has the shape {list(self.spec.observation_shape)}"
            ) from None


def evaluate_command(options: argparse.Namespace) -> int:
    """`rlcluster evaluate`."""
    _check_outputs(options)
    name = "evaluate" if options.run is not None else "--checkpoint"
    checkpoint = find_checkpoint(Path(options.checkpoint) if options.checkpoint else latest_run(), name)
    path, agent = checkpoint.path, load_agent(checkpoint, options.env)
    spec = agent.spec
    shape = (spec.observation_shape[2], *spec.observation_shape[:2]) if spec.is_image else spec.observation_shape
    say(f"Environment: {agent.settings.env.name}")
    say(f"Observation shape: {shape}")
    say(f"Number of actions: {spec.num_actions}")
    say("Device: cpu")
    say(f"Checkpoint: {path}\n")
    say(f"Loaded checkpoint from: {path} (step {agent.steps_global:,})\n")
    results = {}
    for levels in chosen_levels(options.levels, agent.settings.env):
        env = level_settings(agent.settings.env, levels, options.seed)
        with Monitor(options.num_episodes, options.render, _video_path(options, levels)) as monitor:
            episodes = play(
                agent.policy,
                env,
                options.num_episodes,
                options.deterministic,
                monitor.on_step,
                monitor.needs_frames,
            )
        results[levels] = summarise(episodes)
        say(results_text(results[levels], _levels_text(env, agent.settings.env, levels)))
    if len(results) == 2:
        gap = results["train"]["reward_mean"] - results["test"]["reward_mean"]
        say(f"Generalisation Gap: {gap:.2f} (mean reward on training levels less that on unseen ones)")
    if options.json:
        write_evaluation(Path(options.json), _facts(agent, options.deterministic, options.seed), results)
        say(f"Results written to: {options.json}")
    return 0


def _check_outputs(options: argparse.Namespace) -> None:
    """Before anything is loaded or played."""
    if options.json:
        check_output_file("--json", Path(options.json))
    if options.video:
        check_output_file("--video", Path(options.video), VIDEO_SUFFIXES)


def evaluate_agent(
    agent: Agent, levels: str, num_episodes: int, deterministic: bool = False, seed: int = 0
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The facts of an evaluation and its results by levels, without a word on the console."""
    if levels not in LEVELS:
        raise UserError(f"levels={levels}: should be one of {', '.join(LEVELS)}")
    results = {
        one: summarise(play(agent.policy, level_settings(agent.settings.env, one, seed), num_episodes, deterministic))
        for one in chosen_levels(levels, agent.settings.env)
    }
    return _facts(agent, deterministic, seed), results


def _facts(agent: Agent, deterministic: bool, seed: int) -> dict[str, Any]:
    return {
        "checkpoint": str(agent.checkpoint),
        "env": agent.settings.env.name,
        "steps_global": agent.steps_global,
        "deterministic": deterministic,
        "seed": seed,
    }


def load_agent(checkpoint: Checkpoint, env_name: str | None = None, seed: int = 0) -> Agent:
    """The policy of a checkpoint, for the environment it was trained on or a compatible one; `seed` is that of the
    actions which `act` samples.
    """
    settings, steps_global = checkpoint.settings, checkpoint.steps_global
    parameters = checkpoint.parameters()
    if env_name is not None:
        settings = settings.model_copy(update={"env": settings.env.model_copy(update={"name": env_name})})
    spec = environments.describe(settings.env)
    policy = make_policy(settings.policy, spec, 0, _kernels(settings))
    try:
        policy.load_state_dict(parameters)
    except RuntimeError:
        raise UserError(
            f"{checkpoint.path} holds a {settings.policy.network} policy that does not fit {settings.env.name}; "
            "omit --env, or give an environment with the same observations and actions"
        ) from None
    return Agent(policy, settings, checkpoint.path, steps_global, spec, generator(seed, Purpose.EVALUATION, 0))


def level_settings(env: EnvSettings, levels: str, seed: int) -> EnvSettings:
    """Test levels are the game's full distribution (Procgen's protocol); train levels are the run's own."""
    update: dict[str, Any] = {"seed": seed}
    if levels == "test":
        update |= {"num_levels": 0, "start_level": 0}
    return env.model_copy(update=update)


def _kernels(settings: Settings) -> KernelsName:
    """A policy trained with our kernels can still be evaluated on a machine without them."""
    return "torch" if settings.hardware.kernels == "torch" else "auto"


@torch.inference_mode()
def play(
    policy: Policy,
    env: EnvSettings,
    num_episodes: int,
    deterministic: bool = False,
    on_step: OnStep = lambda _environments, _done, _is_first_active: None,
    with_frames: bool = False,
) -> Episodes:
    """Plays `num_episodes`, assigned to the environments in advance: no bias towards short episodes."""
    num_envs = min(MAX_ENVS, num_episodes)
    indices = range(FIRST_ENVIRONMENT, FIRST_ENVIRONMENT + num_envs)
    vector = environments.make(env, indices, with_frames, num_threads=torch.get_num_threads())
    noise = _noise(env.seed, indices)
    quota = np.array([len(range(k, num_episodes, num_envs)) for k in range(num_envs)])
    played: list[list[tuple[float, int, bool]]] = [[] for _ in range(num_envs)]
    rewards, lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
    actions, information = np.zeros(num_envs, np.int64), InformationMeter(vector.spec.num_actions)
    try:
        while (active := np.flatnonzero(quota > 0)).size:
            logits = policy(torch.from_numpy(vector.observations[active])).logits
            information.add(logits)
            draws = torch.from_numpy(next(noise)[active])
            chosen = logits.argmax(-1) if deterministic else sample_actions(logits, draws)
            actions[active] = chosen.numpy()
            is_first_active = bool(quota[0] > 0)
            step = vector.step(actions)
            rewards += step.rewards
            lengths += 1
            completed = vector.levels_completed()
            for k in np.flatnonzero(step.terminated | step.truncated).tolist():
                if quota[k] > 0:
                    played[k].append((float(rewards[k]), int(lengths[k]), completed is not None and bool(completed[k])))
                    quota[k] -= 1
                rewards[k], lengths[k] = 0.0, 0
            on_step(vector, num_episodes - int(quota.sum()), is_first_active)
    finally:
        vector.close()
    flat = [episode for episodes in played for episode in episodes]
    return Episodes(
        np.array([reward for reward, _, _ in flat]),
        np.array([length for _, length, _ in flat]),
        np.array([done for _, _, done in flat]) if completed is not None else None,
        information.value(),
    )


def summarise(episodes: Episodes) -> dict[str, Any]:
    """Mean, standard deviation, range and, of enough episodes, a 95 % interval of the mean (seeded percentile bootstrap
    over episodes).
    """
    rewards, lengths = episodes.rewards, episodes.lengths
    mean = statistics.estimate({"episodes": rewards}, statistics.mean, minimum=statistics.MIN_EPISODES)
    return {
        "episodes": len(rewards),
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
        "reward_interval_95": None if mean.low is None else [mean.low, mean.high],
        "length_mean": float(lengths.mean()),
        "length_std": float(lengths.std()),
        "levels_completed": None if episodes.completed is None else float(episodes.completed.mean()),
        "action_information": episodes.action_information,
    }


def results_text(result: dict[str, Any], levels: str) -> str:
    lines = [
        "",
        "=" * WIDTH,
        "Evaluation Results",
        "=" * WIDTH,
        *([f"Levels: {levels}"] if levels else []),
        f"Episodes: {result['episodes']}",
        f"Mean Reward: {result['reward_mean']:.2f} ± {result['reward_std']:.2f}",
        f"95% Confidence Interval of the Mean: {_interval_text(result['reward_interval_95'])}",
        f"Min/Max Reward: {result['reward_min']:.2f} / {result['reward_max']:.2f}",
        f"Mean Episode Length: {result['length_mean']:.2f} ± {result['length_std']:.2f}",
    ]
    if result["levels_completed"] is not None:
        lines.append(f"Levels Completed: {result['levels_completed']:.1%}")
    lines.append(f"Action Information: {result['action_information']:.3f} nats (0: the policy ignores what it sees)")
    return "\n".join([*lines, "=" * WIDTH])


def _interval_text(interval: list[float] | None) -> str:
    if interval is None:
        return f"not shown below {statistics.MIN_EPISODES} episodes"
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]"


class Monitor:
    """Shows an evaluation: a progress line, or rendering in the terminal; and writes a video."""

    def __init__(self, num_episodes: int, render: bool, video: Path | None) -> None:
        self._num_episodes = num_episodes
        self._done = 0
        self._screen = Screen() if render else None
        self._video = VideoFile(video) if video is not None else None

    @property
    def needs_frames(self) -> bool:
        """True if the environments must render frames."""
        return self._screen is not None or self._video is not None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._screen is None and sys.stderr.isatty():
            say("", stream=sys.stderr)
        if self._video is not None:
            self._video.close()
            if kind is None:
                say(f"Video written to: {self._video.path}")

    def on_step(self, vector: VectorEnvironment, done: int, is_first_active: bool) -> None:
        if self.needs_frames and is_first_active:
            frame = vector.frame()
            if self._video is not None:
                self._video.add(frame)
            if self._screen is not None:
                self._screen.show(frame)
        if done != self._done and self._screen is None and (sys.stderr.isatty() or done == self._num_episodes):
            end = "" if sys.stderr.isatty() else "\n"
            say(
                f"\rEvaluating: {done / self._num_episodes:4.0%} | {done}/{self._num_episodes}",
                end=end,
                stream=sys.stderr,
            )
        self._done = done


def _noise(seed: int, indices: range) -> Any:
    """Yields uniform numbers [N], one array per step; those of environment i depend only on (seed, i)."""
    streams = [generator(seed, Purpose.EVALUATION, i) for i in indices]
    while True:
        yield from np.stack([stream.random(NOISE_BLOCK) for stream in streams], 1)


def chosen_levels(choice: str, env: EnvSettings) -> tuple[str, ...]:
    """Environments without levels are evaluated once, as "test"."""
    if procgen_game(env.name) is None:
        if choice != "test":
            warn(f'levels={choice}: {env.name} has no levels; it is evaluated once, as it is, under the key "test"')
        return ("test",)
    if env.distribution_mode == "exploration" and choice != "train":
        raise UserError(f"--levels {choice}: exploration mode has only one level; use --levels train")
    return ("train", "test") if choice == "both" else (choice,)


def _video_path(options: argparse.Namespace, levels: str) -> Path | None:
    if not options.video:
        return None
    path = Path(options.video)
    return path.with_stem(f"{path.stem}_{levels}") if options.levels == "both" else path


def _levels_text(env: EnvSettings, trained_on: EnvSettings, levels: str) -> str:
    if procgen_game(env.name) is None:
        return ""
    if levels == "test" and trained_on.num_levels == 0:
        return f"the full {env.distribution_mode} distribution, as in training"
    if levels == "test":
        return f"unseen (the full {env.distribution_mode} distribution)"
    return f"training ({env.num_levels or 'all'} from {env.start_level}, {env.distribution_mode})"
