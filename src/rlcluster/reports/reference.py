"""Published Procgen data: each game's score range, and the scores of OpenAI's PPO as a reference.

Ranges: the constants in train-procgen's code. (For jumper and leaper on easy levels, the paper, arXiv 1912.01588, gives
a lowest score of 3 where the code has 1 and 1.5; `--score-range` overrides them.) Scores: train-procgen's published PPO
learning curves, easy levels, 200 training levels, mean of 3 runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rlcluster.settings.games import game_name, procgen_game
from rlcluster.settings.schema import EnvSettings

STEPS = (0.5e6, 1e6, 2e6, 5e6, 10e6, 25e6)  # at which scores are published
OVERSHOOT = 1.01  # a run ends with the update that crosses its budget, so it may overshoot the last point slightly


class Range(NamedTuple):
    """The raw scores that normalise to 0 and 1."""

    low: float
    high: float


class GameFacts(NamedTuple):
    """One game: its score ranges, and the scores of OpenAI's PPO at STEPS on training and unseen levels."""

    easy: Range
    hard: Range
    train: tuple[float, ...]
    test: tuple[float, ...]


GAMES = {
    "bigfish": GameFacts(
        easy=Range(1, 40),
        hard=Range(0, 40),
        train=(1.15, 1.78, 2.90, 5.42, 8.02, 12.18),
        test=(0.99, 1.44, 1.94, 2.76, 3.33, 4.71),
    ),
    "bossfight": GameFacts(
        easy=Range(0.5, 13),
        hard=Range(0.5, 13),
        train=(0.25, 0.56, 2.28, 4.99, 6.88, 8.13),
        test=(0.28, 0.51, 1.72, 3.99, 6.08, 7.46),
    ),
    "caveflyer": GameFacts(
        easy=Range(3.5, 12),
        hard=Range(2, 13.4),
        train=(3.75, 4.06, 4.33, 4.63, 5.55, 7.26),
        test=(3.57, 3.91, 3.92, 4.06, 4.68, 5.19),
    ),
    "chaser": GameFacts(
        easy=Range(0.5, 13),
        hard=Range(0.5, 14.2),
        train=(0.87, 1.04, 1.27, 2.03, 2.96, 6.87),
        test=(0.86, 0.99, 1.14, 1.86, 2.75, 6.18),
    ),
    "climber": GameFacts(
        easy=Range(2, 12.6),
        hard=Range(1, 12.6),
        train=(2.52, 3.02, 4.18, 6.36, 7.59, 8.59),
        test=(2.24, 2.78, 3.55, 4.72, 4.89, 5.95),
    ),
    "coinrun": GameFacts(
        easy=Range(5, 10),
        hard=Range(5, 10),
        train=(6.23, 7.59, 8.49, 8.78, 9.16, 9.54),
        test=(5.85, 7.12, 7.74, 8.06, 8.41, 8.66),
    ),
    "dodgeball": GameFacts(
        easy=Range(1.5, 19),
        hard=Range(1.5, 19),
        train=(1.50, 1.70, 2.00, 2.58, 3.25, 5.07),
        test=(1.51, 1.35, 1.19, 1.03, 1.25, 1.97),
    ),
    "fruitbot": GameFacts(
        easy=Range(-1.5, 32.4),
        hard=Range(-0.5, 27.2),
        train=(-0.21, 3.50, 15.94, 23.64, 26.53, 29.60),
        test=(-0.64, 2.86, 14.48, 21.61, 24.24, 26.59),
    ),
    "heist": GameFacts(
        easy=Range(3.5, 10),
        hard=Range(2, 10),
        train=(3.44, 3.51, 3.75, 4.38, 5.86, 7.98),
        test=(3.03, 2.76, 2.44, 2.54, 2.37, 2.64),
    ),
    "jumper": GameFacts(
        easy=Range(1, 10),
        hard=Range(1, 10),
        train=(5.60, 6.89, 7.45, 8.02, 8.22, 8.58),
        test=(5.25, 5.80, 5.62, 5.68, 5.79, 5.73),
    ),
    "leaper": GameFacts(
        easy=Range(1.5, 10),
        hard=Range(1.5, 10),
        train=(3.03, 3.36, 3.17, 3.82, 4.45, 6.29),
        test=(2.97, 2.92, 2.79, 3.29, 4.29, 5.90),
    ),
    "maze": GameFacts(
        easy=Range(5, 10),
        hard=Range(4, 10),
        train=(5.01, 5.44, 5.44, 7.06, 8.87, 9.38),
        test=(4.89, 5.19, 5.26, 5.03, 5.18, 5.53),
    ),
    "miner": GameFacts(
        easy=Range(1.5, 13),
        hard=Range(1.5, 20),
        train=(1.49, 2.55, 2.78, 5.59, 9.74, 12.80),
        test=(1.50, 2.44, 2.62, 4.69, 7.14, 9.45),
    ),
    "ninja": GameFacts(
        easy=Range(3.5, 10),
        hard=Range(2, 10),
        train=(3.95, 4.74, 4.48, 5.38, 6.39, 7.64),
        test=(3.97, 4.59, 4.27, 4.80, 5.13, 5.72),
    ),
    "plunder": GameFacts(
        easy=Range(4.5, 30),
        hard=Range(3, 30),
        train=(4.22, 4.15, 4.54, 5.03, 5.46, 5.31),
        test=(4.22, 3.87, 4.30, 4.56, 4.73, 4.59),
    ),
    "starpilot": GameFacts(
        easy=Range(2.5, 64),
        hard=Range(1.5, 35),
        train=(3.75, 6.52, 10.70, 19.03, 21.70, 30.15),
        test=(3.31, 5.76, 9.55, 16.55, 18.91, 23.51),
    ),
}


def score_range(env: EnvSettings) -> Range | None:
    """The published score range of an environment, or None."""
    game = procgen_game(env.name)
    if game is None or env.distribution_mode not in ("easy", "hard"):
        return None
    return GAMES[game].easy if env.distribution_mode == "easy" else GAMES[game].hard


def ranges(given: Iterable[tuple[str, tuple[float, float]]]) -> dict[str, Range]:
    """User-defined ranges by canonical game name."""
    return {game_name(name): Range(*ends) for name, ends in given}


def openai_ppo(env: EnvSettings, steps: float, levels: str) -> float | None:
    """The score of OpenAI's PPO on "train" or "test" levels after `steps`, linearly interpolated; None outside the
    published points or for other environment settings.
    """
    game = procgen_game(env.name)
    is_within = STEPS[0] <= steps <= OVERSHOOT * STEPS[-1]
    if game is None or not is_published_setting(env) or not is_within:
        return None
    return float(np.interp(steps, STEPS, GAMES[game].train if levels == "train" else GAMES[game].test))


def is_published_setting(env: EnvSettings) -> bool:
    """Easy levels, 200 training levels, default visuals."""
    default = EnvSettings(name=env.name)
    free = {"name", "num_envs", "seed"}
    return env.model_dump(exclude=free) == default.model_dump(exclude=free) and env.distribution_mode == "easy"
