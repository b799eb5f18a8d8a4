"""The `rlcluster` command: help, flags, and errors in one line with exit code 2."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

import rlcluster
from rlcluster.cli import main
from rlcluster.flags import FLAG_NAMES, make_parser
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings, setting_fields
from rlcluster.system import cores

# Settings for which any string is valid; where they need a value, the empty string is the invalid one.
TEXT_SETTINGS = {
    *("env.name", "cluster.master_addr", "hardware.rollout_dir", "policy.init_from"),
    *("output.output_dir", "output.checkpoint_dir", "output.log_dir"),
}
OTHERS_SETTINGS = {
    **dict.fromkeys(("rmsprop_decay", "rmsprop_epsilon"), "a2c"),
    **dict.fromkeys(("rho_bar", "c_bar", "deterministic", "slots_per_actor", "workers_per_rank"), "impala"),
}


class Outcome(NamedTuple):
    exit_code: int
    out: str
    err: str


def run(*arguments: str) -> Outcome:
    """Runs the command in this process, for commands that end before torch is imported."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            exit_code = main(arguments)
        except SystemExit as exit_request:
            exit_code = exit_request.code
    return Outcome(exit_code, out.getvalue(), err.getvalue())


def refusal(*arguments: str) -> str:
    """The one-line error for these arguments."""
    outcome = run(*arguments)
    assert_refused(outcome)
    return outcome.err.removesuffix("\n")


def assert_refused(outcome: Outcome) -> None:
    assert outcome.exit_code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert re.match(r"rlcluster( \w+)?: error: ", outcome.err)


# Help


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["train", "--help-all"],
        ["evaluate", "--help"],
        ["scale", "--help"],
        ["--version"],
    ],
)
def test_help_is_shown_without_importing_torch_or_numpy(arguments):
    command = [sys.executable, "-X", "importtime", "-m", "rlcluster", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert "rlcluster.cli" in imported
    assert imported.isdisjoint({"torch", "numpy", "gymnasium", "tensorboard"})
    assert result.stdout


def test_the_help_names_every_command():
    outcome = run("--help")
    assert outcome.exit_code == 0
    for command in ("train", "evaluate", "scale", "check"):
        assert re.search(rf"^ +{command} ", outcome.out, re.MULTILINE)


def test_the_bare_command_shows_the_help():
    assert run() == run("--help")
    usage, description, options, *_ = [" ".join(part.split()) for part in run().out.split("\n\n")]
    assert usage.startswith("usage: rlcluster ")
    assert options.startswith("options:")
    assert description == "Train and compare reinforcement-learning algorithms on CPUs, from a laptop to a cluster."


def test_the_version_is_that_of_the_package():
    assert run("--version") == Outcome(0, f"rlcluster {rlcluster.__version__}\n", "")


@pytest.mark.parametrize("command", ["train", "scale"])
def test_every_setting_has_a_flag_in_help_all(command):
    flags = set(re.findall(r"--[a-z][a-z-]*", run(command, "--help-all").out))
    expected = {FLAG_NAMES.get(field.key, ("--" + field.name.replace("_", "-"),))[0] for field in setting_fields()}
    assert expected <= flags


COMMON_FLAGS = (
    *("--env", "--num-envs", "--duration", "--total-timesteps", "--num-workers", "--num-threads", "--seed"),
    *("--network", "--learning-rate", "--n-steps", "--num-levels", "--output-dir"),
)
SCALE_FLAGS = ("--world-sizes", "--scaling", "--repeats", "--warmup-iters")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train", ("--config", "--mode", *COMMON_FLAGS, "--resume")),
        ("scale", ("--config", *SCALE_FLAGS, *(flag for flag in COMMON_FLAGS if flag != "--num-workers"))),
    ],
)
def test_the_help_shows_the_common_flags_in_order_and_points_to_help_all(command, expected):
    outcome = run(command, "--help")
    assert outcome.exit_code == 0
    assert tuple(re.findall(r"^  (--[a-z-]+)", outcome.out, re.MULTILINE)) == expected
    assert "{ppo,a2c,impala,a3c}" in outcome.out
    assert outcome.out.splitlines()[-1] == f"`rlcluster {command} --help-all` shows every setting."


@pytest.mark.parametrize("command", ["train", "scale"])
def test_help_all_has_a_group_with_its_full_heading_for_every_section(command):
    outcome = run(command, "--help-all")
    assert outcome.exit_code == 0
    words = " ".join(outcome.out.split())
    assert "training: The algorithm. Sources: [tp] train-procgen's PPO, [a2c] arXiv 1602.01783, [im] IMPALA, " in words
    for name in ("env", "training", "policy", "parallel", "hardware", "cluster", "output"):
        heading = " ".join(Settings.model_fields[name].annotation.__doc__.split())
        assert f"{name}: {heading} --" in words


def test_the_help_of_evaluate_explains_deterministic():
    assert "--deterministic" in (out := run("evaluate", "--help").out)
    assert "the greedy action instead of a sampled one" in " ".join(out.split())


@pytest.mark.parametrize("command", ["train", "scale"])
def test_the_examples_of_the_help_are_commands_that_work(command, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    examples = re.findall(r"^  rlcluster (.+)$", run(command, "--help").out, re.MULTILINE)
    assert 3 <= len(examples) <= 5
    for example in examples:
        options = make_parser().parse_args(example.split())
        assert options.command == command
        given = {field.key: value for field in setting_fields() if (value := getattr(options, field.key)) is not None}
        load_settings(options.algorithm, getattr(options, "mode", "parallel"), options.config, given)


# Flags


@pytest.mark.parametrize(
    "key", [field.key for field in setting_fields() if field.key not in TEXT_SETTINGS], ids=lambda key: key
)
def test_an_invalid_value_is_reported_under_the_setting(key):
    flag = FLAG_NAMES.get(key, ("--" + key.split(".")[1].replace("_", "-"),))[0]
    algorithm = OTHERS_SETTINGS.get(key.split(".")[1], "ppo")
    assert refusal("train", algorithm, flag, "wrong").startswith(f"rlcluster: error: {key}=wrong: ")


@pytest.mark.parametrize(
    ("alias", "value", "key"),
    [
        ("--env", "", "env.name=None"),
        ("--env-id", "", "env.name=None"),
        ("--total-updates", "wrong", "training.total_updates=wrong"),
        ("--total-iters", "wrong", "training.total_updates=wrong"),
        ("--rollout-steps", "wrong", "training.n_steps=wrong"),
        ("--epochs", "wrong", "training.n_epochs=wrong"),
        ("--minibatches", "wrong", "training.n_minibatches=wrong"),
        ("--backend", "wrong", "cluster.distributed_backend=wrong"),
    ],
)
def test_an_alias_sets_the_same_setting(alias, value, key):
    assert refusal("train", alias, value).startswith(f"rlcluster: error: {key}: ")


def test_a_flag_wins_over_the_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("env: {num_envs: 3}\ntraining: {n_steps: 7, batch_size: 2}")
    assert "n_steps * num_envs = 5 * 3 = 15;" in refusal("train", "--config", str(file), "--n-steps", "5")


def test_a_boolean_flag_may_omit_its_value(tmp_path):
    base = ["train", "--resume", "--output-dir", str(tmp_path)]
    (tmp_path / "config.yaml").write_text("training: {anneal_learning_rate: false}")
    for arguments in (["--anneal-learning-rate"], ["--anneal-learning-rate", "yes"], ["--anneal-learning-rate=true"]):
        assert "training.anneal_learning_rate=True but the run has False" in refusal(*base, *arguments)


def test_another_optimiser_on_resume_is_refused_by_its_own_name(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: a2c\ntraining: {rmsprop_decay: 0.9}")
    message = refusal("train", "--resume", "--output-dir", str(tmp_path), "--optimizer", "adam")
    assert "leave these out: training.optimizer=adam but the run has rmsprop" in message
    assert "rmsprop_decay" not in message


def test_the_algorithm_of_the_command_line_decides_which_settings_have_an_effect():
    message = refusal("train", "a2c", "--clip-range", "0.1")
    assert message == "rlcluster: error: training.clip_range=0.1 has no effect with a2c; remove it"


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ppo", "--nmu-envs", "8"], "train: error: unknown flag --nmu-envs; did you mean --num-envs?"),
        (["train", "--learning-rat=1"], "train: error: unknown flag --learning-rat; did you mean --learning-rate?"),
        (["train", "--lr", "1"], "train: error: unknown flag --lr; did you mean --learning-rate?"),
        (["evaluate", "--checkpiont", "x"], "evaluate: error: unknown flag --checkpiont; did you mean --checkpoint?"),
        (["check", "--zzz"], "check: error: unknown flag --zzz; see --help"),
        (["train", "--zzz"], "train: error: unknown flag --zzz; see --help-all"),
    ],
)
def test_an_unknown_flag_is_refused_with_a_suggestion(arguments, message):
    assert refusal(*arguments) == f"rlcluster {message}"


def test_the_value_of_an_unknown_flag_is_not_taken_for_the_algorithm():
    assert "did you mean --num-envs?" in refusal("train", "--nmu-envs", "8")


def test_a_flag_is_not_abbreviated():
    assert "unknown flag --num-env; did you mean --num-envs?" in refusal("train", "ppo", "--num-env", "8")


def test_a_negative_number_in_scientific_notation_is_a_value_and_not_a_flag():
    assert "training.learning_rate=-1e-3: input should be greater than 0" in refusal(
        "train", "--learning-rate", "-1e-3"
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["fly"], "invalid choice: 'fly'"),
        (["train", "dqn"], "invalid choice: 'dqn'"),
        (["train", "--mode", "fast"], "invalid choice: 'fast'"),
        (["train", "--num-envs"], "argument --num-envs: expected one argument"),
        (["train", "--num-envs", "0"], "env.num_envs=0: input should be greater than or equal to 1"),
        (["train", "--seed", "-1"], "env.seed=-1: input should be greater than or equal to 0"),
        (["train", "--duration", "soon"], "training.duration=soon: should be hours (0.5) or a number with a unit"),
        (["train", "--batch-size", "1000"], "use 1024 or 512"),
        (["train", "--config", "/no/such/file.yaml"], "--config /no/such/file.yaml: No such file or directory"),
        (["evaluate", "--num-episodes", "0"], "0 should be at least 1"),
        (["evaluate", "--num-episodes", "many"], "many should be a whole number"),
        (["evaluate", "--seed", "-1"], "-1 should not be negative"),
        (["evaluate", "--levels", "all"], "invalid choice: 'all'"),
        (["check", "--num-threads", "0"], "0 should be at least 1"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(arguments, part):
    assert part in refusal(*arguments)


@pytest.mark.parametrize("arguments", [["train"], ["train", "--mode", "parallel"], ["evaluate"], ["check"]])
def test_more_threads_than_the_machine_can_run_are_refused_with_the_number_of_its_cores(arguments):
    allowed = cores.allowed()
    message = refusal(*arguments, "--num-threads", "100000")
    assert message.startswith("rlcluster: error: num_threads=100000 but this process may use ")
    assert message.endswith(f"use {allowed}, or leave it out")


def test_several_problems_are_listed_line_by_line():
    outcome = run("train", "--num-envs", "0", "--gamma", "2")
    assert outcome.exit_code == 2
    assert outcome.err.splitlines() == [
        "rlcluster: error: 2 problems in the settings:",
        "  env.num_envs=0: input should be greater than or equal to 1",
        "  training.gamma=2: input should be less than or equal to 1",
    ]


PATH_FLAGS = [
    *(("train", flag) for flag in ("--config", "--output-dir", "--checkpoint-dir", "--log-dir", "--rollout-dir")),
    *(("evaluate", flag) for flag in ("--checkpoint", "--video", "--json")),
    *(("compare", flag) for flag in ("--sequential", "--parallel", "--output", "")),
    *(("plot", flag) for flag in ("--log-file", "--output", "")),
    *(("suite", flag) for flag in ("--output-dir", "")),
    *(("scale", flag) for flag in ("--config", "--output-dir")),
    ("check", "--output-dir"),
]


@pytest.mark.parametrize(("command", "flag"), PATH_FLAGS)
def test_every_path_of_every_command_is_refused_alike_if_no_file_can_have_it(command, flag):
    given = [flag] if flag else []
    assert refusal(command, *given, "a" * 300).endswith(
        "is too long (a name of 300, a path of 300): at most 255 bytes for a name and 4095 for a path"
    )
    assert refusal(command, *given, "caf\udce9").endswith(": caf\\udce9: is not UTF-8; rename it")


@pytest.mark.parametrize(("command", "flag"), PATH_FLAGS)
def test_a_tilde_is_the_home_folder_in_every_path_of_every_command(command, flag, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    options = make_parser().parse_args(
        [command, f"{flag}=~/q" if flag else "~/q", *(["plan"] if command == "suite" and flag else [])]
    )
    assert any(value in ("/home/somebody/q", ["/home/somebody/q"]) for value in vars(options).values())


def test_a_run_in_the_home_folder_can_be_resumed_by_its_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"--resume: {tmp_path}/q is not a run directory" in refusal("train", "--resume", "--output-dir=~/q")


# Resuming


def test_resume_needs_a_run():
    assert refusal("train", "--resume") == (
        "rlcluster: error: --resume: give the run to continue with --output-dir DIR"
    )


def test_a_directory_that_is_not_a_run_cannot_be_resumed(tmp_path):
    message = f"rlcluster: error: --resume: {tmp_path} is not a run directory (no config.yaml in it)"
    assert refusal("train", "--resume", "--output-dir", str(tmp_path)) == message


def test_a_run_cannot_be_resumed_with_other_settings(tmp_path):
    (tmp_path / "config.yaml").write_text(load_settings().to_yaml())
    message = refusal("train", "--resume", "--output-dir", str(tmp_path), "--gamma", "0.9", "--seed", "1")
    assert message == (
        "rlcluster: error: --resume: a run keeps its settings; leave these out: "
        "env.seed=1 but the run has 42; training.gamma=0.9 but the run has 0.999"
    )


def test_a_run_cannot_be_resumed_with_another_algorithm(tmp_path):
    (tmp_path / "config.yaml").write_text(load_settings("ppo").to_yaml())
    message = refusal("train", "a2c", "--resume", "--output-dir", str(tmp_path))
    assert "is a run of ppo, not a2c" in message


# Commands that need torch: all in one process, since the import takes seconds

HEAVY_COMMANDS = {
    "more workers than environments": ["train", "--mode", "parallel", "--num-workers", "99", "--output-dir", "new"],
    "an address without a launcher": ["train", "--mode", "distributed", "--master-addr", "10.0.0.1"],
    "an existing output directory": ["train", "--env", "CartPole-v1", "--output-dir", "full"],
    "a file as output directory": ["train", "--env", "CartPole-v1", "--output-dir", "full/file"],
    "an unknown environment": ["train", "--env", "CartPoll-v1", "--output-dir", "new"],
    "a run without checkpoints": ["train", "--resume", "--output-dir", "empty_run"],
    "a missing checkpoint": ["evaluate", "--checkpoint", "missing.pt"],
    "a directory without checkpoints": ["evaluate", "--checkpoint", "full"],
    "a checkpoint that is none": ["evaluate", "--checkpoint", "full/file"],
    "no run at all": ["evaluate"],
}
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_cli import HEAVY_COMMANDS, run
outcomes = {name: run(*arguments) for name, arguments in HEAVY_COMMANDS.items()}
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def heavy_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heavy")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("something of the user's")
    (folder / "empty_run").mkdir()
    (folder / "empty_run" / "config.yaml").write_text("env: {name: CartPole-v1}\npolicy: {network: mlp}\n")
    return folder


@pytest.fixture(scope="module")
def heavy_outcomes(heavy_folder, request):
    command = [sys.executable, "-c", SCRIPT, str(request.path.parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=heavy_folder)
    return {name: Outcome(*outcome) for name, outcome in json.loads(result.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "more workers than environments",
            "parallel.num_workers=99 but env.num_envs=32: every process needs an environment; use fewer processes or "
            "more environments",
        ),
        (
            "an address without a launcher",
            "cluster.master_addr=10.0.0.1 needs a launcher on each machine, which sets RANK and WORLD_SIZE: torchrun, "
            "for example; leave it out to train on this machine alone",
        ),
        (
            "an existing output directory",
            "output.output_dir=full exists; it is not a run: choose another --output-dir",
        ),
        (
            "a file as output directory",
            "output.output_dir=full/file exists; it is not a run: choose another --output-dir",
        ),
        (
            "a run without checkpoints",
            "--resume: there is no usable checkpoint in empty_run/checkpoints; start a new run in another --output-dir",
        ),
        ("a missing checkpoint", "--checkpoint missing.pt: there is no such file or run directory"),
        (
            "a directory without checkpoints",
            "--checkpoint full: no checkpoint (*_final.pt or *_step_*.pt) in it or in its checkpoints/",
        ),
        ("no run at all", "no run with a checkpoint below runs/; give --checkpoint PATH or train first"),
    ],
)
def test_an_impossible_run_is_refused_in_one_line(heavy_outcomes, name, message):
    assert_refused(heavy_outcomes[name])
    assert heavy_outcomes[name].err == f"rlcluster: error: {message}\n"


@pytest.mark.parametrize(
    ("name", "part"),
    [("an unknown environment", "CartPoll-v1"), ("a checkpoint that is none", "full/file: is not a whole checkpoint")],
)
def test_an_unreadable_input_is_named_in_one_line(heavy_outcomes, name, part):
    assert_refused(heavy_outcomes[name])
    assert part in heavy_outcomes[name].err


def test_a_refused_command_writes_nothing(heavy_outcomes, heavy_folder):
    assert heavy_outcomes
    assert not (heavy_folder / "new").exists()
    assert [file.name for file in (heavy_folder / "full").iterdir()] == ["file"]
    assert (heavy_folder / "full" / "file").read_text() == "something of the user's"


def test_the_exit_code_of_an_error_reaches_the_shell():
    command = [sys.executable, "-m", "rlcluster", "train", "--num-envs", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = "rlcluster: error: env.num_envs=0: input should be greater than or equal to 1\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", expected)


def test_the_outcome_of_a_forecast_is_that_of_the_machines_the_run_had(tmp_path, monkeypatch):
    from rlcluster.experiments import predictions
    from rlcluster.training import progress, train

    recorded = []
    result = train.TrainingResult(tmp_path, {"world_size": 7}, None, num_nodes=4)
    monkeypatch.setattr(train, "train", lambda *_: result)
    monkeypatch.setattr(predictions, "record_outcome", lambda *arguments: recorded.append(arguments))
    monkeypatch.setattr(progress, "training_summary", lambda *_: "")
    assert main(["train", "ppo", "--env", "CartPole-v1"]) == 0
    assert recorded == [(tmp_path, {"world_size": 7}, 4)]
