"""The flags that peers.py gives to every peer: names and values are those of `rlcluster train`.

Runs with the Python of .venv-peers, in which rlcluster is not installed.
"""

from __future__ import annotations

import argparse

WHOLE_NUMBERS = ("--num-envs", "--n-steps", "--batch-size", "--n-epochs", "--total-updates", "--num-threads")
NUMBERS = (
    *("--learning-rate", "--gamma", "--gae-lambda", "--clip-range"),
    *("--entropy-coefficient", "--value-coefficient", "--max-grad-norm"),
)


def parse_options(description: str | None, networks: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="a Procgen game, or with mlp another environment's name")
    parser.add_argument("--network", required=True, choices=networks)
    for flag in WHOLE_NUMBERS:
        parser.add_argument(flag, required=True, type=int)
    for flag in NUMBERS:
        parser.add_argument(flag, required=True, type=float)
    parser.add_argument("--distribution-mode", choices=("easy", "hard"), default="easy")
    parser.add_argument("--num-levels", type=int, default=200)
    parser.add_argument("--start-level", type=int, default=0)
    return parser.parse_args()


def engine_threads(num_threads: int) -> int:
    """Procgen's count of threads besides the caller's: 0 steps the environments in the caller's own."""
    return num_threads if num_threads > 1 else 0
