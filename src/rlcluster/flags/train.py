"""`rlcluster train`."""

from __future__ import annotations

from typing import Any

from rlcluster.flags.settings import COMMON, add_algorithm_and_file, add_max_wall, add_settings
from rlcluster.settings.schema import MODE_NAMES

TRAIN_EXAMPLES = """examples:
  rlcluster train ppo --env coinrun --duration 30m
  rlcluster train ppo --config ppo_procgen --env starpilot --mode parallel
  rlcluster train impala --mode parallel --num-workers 4 --total-timesteps 5e6
  rlcluster train --resume --output-dir runs/half_hour

`rlcluster train --help-all` shows every setting."""


def add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train an agent",
        usage="rlcluster train [ALGORITHM] [--config FILE] [flags]",
        description="Train an agent. Every setting of the YAML file is also a flag, and flags override the file.",
        epilog=TRAIN_EXAMPLES,
    )
    first = add_algorithm_and_file(parser)
    mode = parser.add_argument("--mode", choices=MODE_NAMES, help="default: the file's, else sequential")
    resume = parser.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    add_max_wall(parser)
    parser.add_argument(
        "--in-job",
        action="store_true",
        help="as job scripts call it: resumes the run if it has a checkpoint; exit code 75 after SIGUSR1",
    )
    settings = add_settings(parser)
    parser.brief = [*first, mode, *(settings[key] for key in COMMON), resume]
