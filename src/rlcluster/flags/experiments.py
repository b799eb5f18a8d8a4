"""`rlcluster suite`, `scale`, `profile`, `tune` and `plan`: runs that compare, measure or forecast."""

from __future__ import annotations

from typing import Any

from rlcluster.flags.settings import COMMON, add_algorithm_and_file, add_max_wall, add_settings
from rlcluster.flags.values import natural, path, positive, positive_number, world_sizes
from rlcluster.settings.schema import MODE_NAMES

DECIDED_BY_SCALE = ("parallel.num_workers",)  # set by --world-sizes
DECIDED_BY_TUNE = (
    *("parallel.num_workers", "hardware.num_threads", "training.duration", "training.total_timesteps"),
    "output.output_dir",
)
DECIDED_BY_PROFILE = ("training.duration", "training.total_timesteps", "output.output_dir")  # --updates, --output
SCALE_EXAMPLES = """examples:
  rlcluster scale ppo --world-sizes 1,2,4 --env coinrun --num-envs 8
  rlcluster scale a2c --world-sizes 1,2 --scaling weak --num-envs 16 --repeats 5
  rlcluster scale --config ppo_parallel --output-dir runs/scale

`rlcluster scale --help-all` shows every setting."""
PLAN_EXAMPLES = """examples:
  rlcluster plan ppo --mode distributed --nodes 1,4,16 --cores-per-node 32 --num-envs 1024 --total-timesteps 200e6
  rlcluster plan impala --mode parallel --duration 2h --json forecast.json

`rlcluster plan --help-all` shows every setting."""
PROFILE_EXAMPLES = """examples:
  rlcluster profile ppo --env coinrun --mode parallel
  rlcluster profile impala --config configs/impala_parallel.yaml --updates 10 --json figures.json

`rlcluster profile --help-all` shows every setting. `rlcluster train --profile N` profiles a run from update N on."""


def add_suite(commands: Any) -> None:
    parser = commands.add_parser(
        "suite",
        help="train, evaluate and compare all runs of a plan",
        description="Run every cell of a plan with equal budgets, then compare them. If interrupted, run it again to "
        "resume. docs/guide.md explains the file.",
    )
    parser.add_argument(
        "file", type=path, metavar="FILE.yaml", help="the plan: a file, or a preset such as suite_quick"
    )
    parser.add_argument("--output-dir", type=path, metavar="DIR", help="default: runs/ and the file's name")
    parser.add_argument(
        "--only", metavar="PATTERN", help="run the cells whose names match this regular expression: 'coinrun_seed[12]'"
    )
    parser.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="cells side by side, each with cores of its own (1)"
    )
    parser.add_argument("--watch", action="store_true", help="write the report every 30 seconds while the suite runs")
    add_max_wall(parser)
    parser.add_argument("--report-only", action="store_true", help="compare what is there; train nothing")
    parser.add_argument(
        "--task-file", type=path, metavar="FILE", help="as job scripts call it: the cells of each task, a line each"
    )
    parser.add_argument("--task", type=natural, default=0, metavar="K", help="run the cells of line K, from 0")
    parser.add_argument("--in-job", action="store_true", help="as job scripts call it: exit code 75 after SIGUSR1")


def add_scale(commands: Any) -> None:
    parser = commands.add_parser(
        "scale",
        help="measure how training speed scales with the number of processes",
        usage="rlcluster scale [ALGORITHM] [--world-sizes W,W,...] [flags]",
        description="Train in mode parallel with different numbers of processes and compare the speeds. Takes the "
        "settings of `train`; by default a run has 30 updates and a process one thread. A budget in the file is "
        "ignored. Results go to --output-dir (default: a dated name in runs/).",
        epilog=SCALE_EXAMPLES,
    )
    first = add_algorithm_and_file(parser)
    own = (
        parser.add_argument(
            "--world-sizes",
            type=world_sizes,
            default=(1, 2, 4),
            metavar="W,W,...",
            help="numbers of processes (1,2,4)",
        ),
        parser.add_argument(
            "--scaling",
            choices=("strong", "weak", "both"),
            default="strong",
            help="strong: num_envs in total; weak: num_envs per process (strong)",
        ),
        parser.add_argument("--repeats", type=positive, default=3, help="runs per number of processes (3)"),
        parser.add_argument("--warmup-iters", type=natural, default=5, help="initial updates to exclude (5)"),
    )
    settings = add_settings(parser)
    parser.brief = [*first, *own, *(settings[key] for key in COMMON if key not in DECIDED_BY_SCALE)]


def add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile",
        help="find out where the time of a training goes",
        usage="rlcluster profile [ALGORITHM] [--updates N] [flags]",
        description="Train for some updates and report where their time goes: phases of every process, who waited for "
        "whom, a roofline, memory. Takes the settings of `train`. Writes profile.html, profile.json and trace.json.",
        epilog=PROFILE_EXAMPLES,
    )
    first = add_algorithm_and_file(parser)
    own = (
        parser.add_argument("--mode", choices=MODE_NAMES, help="default: the file's, else sequential"),
        parser.add_argument("--updates", type=positive, default=20, help="updates to profile, after 2 others (20)"),
        parser.add_argument(
            "--flame", action="store_true", help="add a flame graph of Python by py-spy, in a second pass: flame.svg"
        ),
        parser.add_argument(
            "--output", type=path, metavar="DIR", help="run directory (default: a dated name in runs/)"
        ),
        parser.add_argument("--json", type=path, metavar="FILE", help="write the figures as JSON"),
    )
    settings = add_settings(parser)
    parser.brief = [*first, *own, *(settings[key] for key in COMMON if key not in DECIDED_BY_PROFILE)]


def add_tune(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="find the fastest way to use this machine's cores",
        usage="rlcluster tune [ALGORITHM] [--minutes M] [flags]",
        description="Try ranks, threads, chunk sizes and pinning, in turns of one update, and write the fastest as a "
        "file for --config. The result of a run does not change, unless you allow it. Takes the settings of `train`.",
    )
    first = add_algorithm_and_file(parser)
    own = (
        parser.add_argument("--minutes", type=positive_number, default=3.0, help="time to spend (3)"),
        parser.add_argument(
            "--allow-algorithm-changes",
            action="store_true",
            help="also try other numbers of environments and batch sizes, which change the result",
        ),
        parser.add_argument(
            "--output", type=path, default="tuned.yaml", metavar="FILE.yaml", help="the result (tuned.yaml)"
        ),
        parser.add_argument("--json", type=path, metavar="FILE", help="write the figures as JSON"),
    )
    settings = add_settings(parser)
    parser.brief = [*first, *own, *(settings[key] for key in COMMON if key not in DECIDED_BY_TUNE)]


def add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="forecast speed, time and memory of a run on one or many nodes",
        usage="rlcluster plan [ALGORITHM] [--nodes N,N,...] [flags]",
        description="Measure one node for a minute (or take a run) and forecast the run on more: steps/s, hours, "
        "core-hours, memory, disk. Takes the settings of `train`. docs/scaling.md has the model.",
        epilog=PLAN_EXAMPLES,
    )
    first = add_algorithm_and_file(parser)
    own = (
        parser.add_argument("--mode", choices=MODE_NAMES, help="default: the file's, else sequential"),
        parser.add_argument("--nodes", type=world_sizes, default=(1,), metavar="N,N,...", help="numbers of nodes (1)"),
        parser.add_argument("--cores-per-node", type=positive, metavar="C", help="default: those measured here"),
        parser.add_argument(
            "--interconnect",
            choices=("10GbE", "1GbE", "MEASURE"),
            help="between nodes (10GbE, or as probed if srun has started one rank on each); MEASURE: as here",
        ),
        parser.add_argument("--run", type=path, metavar="RUN", help="take the measurement from this run"),
        parser.add_argument("--seconds", type=positive, default=60, help="of the measurement (60)"),
        parser.add_argument("--json", type=path, metavar="FILE", help="write the figures as JSON"),
    )
    settings = add_settings(parser)
    parser.brief = [*first, *own, *(settings[key] for key in COMMON)]
