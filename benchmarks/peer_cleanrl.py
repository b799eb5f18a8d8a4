"""CleanRL's PPO on one workload: prints {"fps": ...}, rollout and learning included.

Run by peers.py with the Python of .venv-peers and the flags that `rlcluster train` gets too. peers.py also sets
OMP_NUM_THREADS and its like, before this process imports torch. The first update warms up and is not counted.

What runs is CleanRL 1.2.0 as its wheel on PyPI has it, unmodified: ppo_procgen.py for impala and ppo.py for mlp, each
as the main program with flags of its own. Three things are set from outside:

- its TensorBoard writer, replaced by a clock: the script logs `charts/SPS` last in every update, and that is when an
  update ends. So nothing is written, which is in the peer's favour;
- the number of threads of Procgen's engine, for which the script has no flag (Procgen's default is 4);
- torch's number of threads.

Its wheel asks for Python below 3.11, so pip is told to ignore that, and to leave out its requirements: the two scripts
import torch, numpy, gym and procgen alone. gym is 0.23.1, the version that CleanRL requires; later ones have another
interface.

Where CleanRL leaves no choice, peers.py gives ours the same: all levels of the game, easy ones, and normalised rewards
(divided by the standard deviation of the discounted return, clipped to ±10). Value clipping and annealing are off.
The networks have ours' layers and number of parameters (impala 626,256, mlp 9,155). These differences remain; none
changes what the network computes per sample:

- reward statistics are updated in every step; ours once per rollout;
- in CartPole, an episode that the time limit ends counts as terminated; ours adds the value of its last observation;
- initial weights are drawn CleanRL's way.

Left as CleanRL has it: observations kept as 32-bit numbers (so frames take four times their size), minibatches in one
piece, episodes counted by gym's wrapper and printed. It permutes frames without a copy, so its convolutions run
channels-last, unlike Stable-Baselines3's.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from argparse import Namespace
from functools import partial
from types import ModuleType
from typing import NamedTuple

import procgen
import torch

from peer_options import engine_threads, parse_options

SCRIPTS = {"impala": "cleanrl.ppo_procgen", "mlp": "cleanrl.ppo"}


def main() -> None:
    options = parse_options(__doc__, tuple(SCRIPTS))
    check_levels(options)
    clock = UpdateClock()
    replace_writer(clock)
    torch.set_num_threads(options.num_threads)
    procgen.ProcgenEnv = partial(procgen.ProcgenEnv, num_threads=engine_threads(options.num_threads))
    sys.argv[1:] = cleanrl_flags(options)
    runpy.run_module(SCRIPTS[options.network], run_name="__main__", alter_sys=True)
    assert len(clock.ends) == options.total_updates
    print(json.dumps({"fps": clock.fps()}))


def check_levels(options: Namespace) -> None:
    levels = (options.distribution_mode, options.num_levels, options.start_level)
    if options.network == "impala" and levels != ("easy", 0, 0):
        sys.exit(f"CleanRL trains on all easy levels: use --distribution-mode easy --num-levels 0, not {levels}")


def cleanrl_flags(options: Namespace) -> list[str]:
    """The workload in CleanRL's words. Its value loss has the factor 1/2, as ours."""
    rollout_size = options.num_envs * options.n_steps
    values = {
        "--env-id": options.env,
        "--num-envs": options.num_envs,
        "--num-steps": options.n_steps,
        "--num-minibatches": rollout_size // options.batch_size,
        "--update-epochs": options.n_epochs,
        "--total-timesteps": rollout_size * options.total_updates,
        "--learning-rate": options.learning_rate,
        "--anneal-lr": False,
        "--gamma": options.gamma,
        "--gae-lambda": options.gae_lambda,
        "--norm-adv": True,
        "--clip-coef": options.clip_range,
        "--clip-vloss": False,
        "--ent-coef": options.entropy_coefficient,
        "--vf-coef": options.value_coefficient,
        "--max-grad-norm": options.max_grad_norm,
        "--cuda": False,
    }
    return [text for flag, value in values.items() for text in (flag, str(value))]


class UpdateEnd(NamedTuple):
    steps: int
    seconds: float


class UpdateClock:
    """Has the methods of a SummaryWriter that CleanRL calls; keeps when each update ended, and nothing else."""

    def __init__(self) -> None:
        self.ends: list[UpdateEnd] = []

    def fps(self) -> float:
        """After the first update."""
        first, *_, last = self.ends
        return (last.steps - first.steps) / (last.seconds - first.seconds)

    def add_scalar(self, tag: str, _value: float, steps: int) -> None:
        if tag == "charts/SPS":
            self.ends.append(UpdateEnd(steps, time.perf_counter()))

    def add_text(self, _tag: str, _text: str) -> None:
        pass

    def close(self) -> None:
        pass


def replace_writer(clock: UpdateClock) -> None:
    """`from torch.utils.tensorboard import SummaryWriter` then gives the clock, and needs no TensorBoard."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda _folder: clock  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


if __name__ == "__main__":
    main()
