"""`rlcluster submit`, `status`, `cancel` and `logs`: jobs of a scheduler."""

from __future__ import annotations

from typing import Any

from rlcluster.flags.values import natural, path, positive

SUBMIT_EXAMPLES = """examples:
  rlcluster submit --nodes 2 --ranks-per-node 8 --time 4h -- train ppo --env starpilot --output-dir runs/starpilot
  rlcluster submit --cores-per-rank 16 --time 2h --max-running 8 -- suite configs/suite_quick.yaml
  rlcluster submit --dry-run --site configs/site_slurm.yaml -- train ppo"""
SUBMIT_FLAGS = (  # name, metavar, help; as in the site file
    ("nodes", "N", "machines (1)"),
    ("ranks-per-node", "R", "ranks on each machine (1); more than one rank in all: mode distributed"),
    ("cores-per-rank", "C", "cores of each rank (1)"),
    ("memory", "8G", "of each rank (the scheduler's default)"),
    ("time", "4h", "time limit: 30m, 4h (the partition's; PBS needs it)"),
    ("save-before", "3m", "time before the limit at which the run saves and stops (3m)"),
    ("partition", "P", "partition or queue"),
    ("account", "A", "account or project"),
    ("qos", "Q", "quality of service (Slurm; on PBS: --scheduler-arg)"),
    ("mail", "ADDRESS", "write to it when the job ends or fails"),
    ("max-requeues", "K", "how often a job may be started again (20)"),
    ("max-restarts", "K", "restarts of the ranks within a job, after a failure (1)"),
)
AFTER_HELP = (
    "start when the job with this id has ended, however it ends. On PBS a job that saves before its limit goes on as a "
    "new job, which is not waited for"
)


def add_submit(commands: Any) -> None:
    parser = commands.add_parser(
        "submit",
        help="submit a training or a suite as jobs of SLURM or PBS",
        usage="rlcluster submit [flags] -- train ... | suite FILE.yaml ...",
        description="Submit a command as a job that saves and is requeued before its time limit, restarts after a "
        "failure and resumes. Submitting an existing run again resumes it. docs/cluster.md explains the site file.",
        epilog=SUBMIT_EXAMPLES,
    )
    parser.add_argument("--scheduler", choices=("auto", "slurm", "pbs", "torque"), help="default: what is found")
    for name, metavar, text in SUBMIT_FLAGS:
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--scheduler-arg", dest="scheduler_args", action="append", metavar="ARG", help="a further flag of the scheduler"
    )
    parser.add_argument("--max-running", type=positive, metavar="M", help="suite: tasks that run at once (all)")
    parser.add_argument(
        "--site", type=path, metavar="FILE", help="what is the same for all jobs of a cluster: docs/cluster.md"
    )
    parser.add_argument(
        "--template", type=path, metavar="FILE", help="a job script with placeholders, instead of our own"
    )
    parser.add_argument("--after", metavar="JOB", help=AFTER_HELP)
    parser.add_argument("--dry-run", action="store_true", help="print the script and the command, and do nothing")


def add_status(commands: Any) -> None:
    status = commands.add_parser("status", help="the state of submitted runs and suites")
    status.add_argument(
        "folders", nargs="*", type=path, metavar="FOLDER", help="run or suite (default: all in runs/ with jobs)"
    )
    status.add_argument("--json", action="store_true", help="for scripts; the exit code is 1 if something has failed")
    cancel = commands.add_parser("cancel", help="cancel the jobs of a run or a suite")
    cancel.add_argument("folder", type=path, metavar="FOLDER", help="run directory, or folder of a suite")
    logs = commands.add_parser("logs", help="the output of a job's ranks")
    logs.add_argument("folder", type=path, metavar="FOLDER", help="run directory, or folder of a suite")
    logs.add_argument("--rank", type=natural, metavar="K", help="of this rank (0)")
    logs.add_argument("--follow", action="store_true", help="print what comes, until the job has ended")
