"""`rlcluster evaluate`."""

from __future__ import annotations

from typing import Any

from rlcluster.flags.values import path, positive, seed


def add_evaluate(commands: Any) -> None:
    parser = commands.add_parser("evaluate", help="play episodes with a trained agent")
    parser.add_argument(
        "run", nargs="?", type=path, metavar="RUN", help="run directory or checkpoint (default: the latest in runs/)"
    )
    parser.add_argument("--checkpoint", type=path, metavar="PATH", help="the same, as a flag")
    parser.add_argument("--env", metavar="NAME", help="environment to evaluate in (default: that of the training)")
    parser.add_argument("--num-episodes", type=positive, default=100, help="episodes to play; all count (100)")
    parser.add_argument("--deterministic", action="store_true", help="take the greedy action instead of a sampled one")
    parser.add_argument(
        "--levels",
        choices=("test", "train", "both"),
        default="test",
        help="unseen levels, training levels, or both (test)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="random seed of levels and actions (0)")
    parser.add_argument("--render", action="store_true", help="show the first environment in the terminal")
    parser.add_argument("--video", type=path, metavar="FILE.mp4", help="write a video of the first environment")
    parser.add_argument("--json", type=path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--num-threads", type=positive, help="default: all cores this process may use")
