"""Settings from files and flags: layering, conversion, and every problem in one message."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rlcluster.settings.loading import MAX_LISTED, load_settings
from rlcluster.settings.reading import MAX_FILE_BYTES, read_file
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_USAGE, UserError

CONFIGS = Path(__file__).parents[2] / "configs"
RUN_CONFIGS = sorted(file for file in CONFIGS.glob("*.yaml") if not file.name.startswith(("suite_", "site_")))


@pytest.fixture
def load(tmp_path):
    """Loads the text of a settings file."""

    def load_text(text: str, suffix: str = ".yaml", **layers) -> Settings:
        file = tmp_path / f"settings{suffix}"
        file.write_text(text, encoding="utf-8")
        return load_settings(file=file, **layers)

    return load_text


@pytest.fixture
def refusal(load):
    """The error message for the text of a settings file."""

    def refusal_of(text: str, suffix: str = ".yaml", **layers) -> str:
        with pytest.raises(UserError) as caught:
            load(text, suffix, **layers)
        assert caught.value.exit_code == EXIT_USAGE == 2
        return str(caught.value)

    return refusal_of


# Layers


def test_the_algorithms_defaults_win_over_the_general_ones():
    assert load_settings("ppo").training.n_steps == 128
    assert load_settings("a2c").training.n_steps == 5


def test_the_file_wins_over_the_algorithms_defaults(load):
    settings = load("algorithm: a2c\ntraining: {n_steps: 20}")
    assert settings.training.n_steps == 20
    assert settings.training.learning_rate == 7e-4  # still A2C's
    assert settings.env.num_envs == 16  # still A2C's


def test_a_flag_wins_over_the_file_and_leaves_the_rest_of_its_section(load):
    settings = load("training: {n_steps: 64, gamma: 0.9}", flags={"training.n_steps": "32"})
    assert settings.training.n_steps == 32
    assert settings.training.gamma == 0.9


def test_algorithm_and_mode_of_the_command_win_over_those_of_the_file(load):
    settings = load("algorithm: ppo\nmode: parallel", algorithm="a2c", mode="sequential")
    assert (settings.algorithm, settings.mode, settings.training.n_steps) == ("a2c", "sequential", 5)


def test_the_file_wins_over_the_run_that_is_resumed(load):
    base = {"training": {"n_steps": "64", "gamma": "0.9"}, "env": {"num_envs": "8"}}
    settings = load("training: {n_steps: 32}", base=base)
    assert (settings.training.n_steps, settings.training.gamma, settings.env.num_envs) == (32, 0.9, 8)


def test_loading_changes_none_of_its_arguments(load):
    base, flags = {"training": {"n_steps": "64"}}, {"training.duration": "1", "env.num_envs": "8"}
    load("training: {total_updates: 3}", base=base, flags=flags)
    assert base == {"training": {"n_steps": "64"}}
    assert flags == {"training.duration": "1", "env.num_envs": "8"}


@pytest.mark.parametrize(
    ("flag", "value", "budgets"),
    [
        ("total_timesteps", "1e6", (1_000_000, None, None)),
        ("duration", "90s", (None, 90.0, None)),
        ("total_updates", "7", (None, None, 7)),
    ],
)
def test_a_budget_flag_replaces_every_budget_of_the_file(load, flag, value, budgets):
    text = "training: {total_timesteps: 500, duration: 1h, total_updates: 3, gamma: 0.9}"
    training = load(text, flags={f"training.{flag}": value}).training
    assert (training.total_timesteps, training.duration, training.total_updates) == budgets
    assert training.gamma == 0.9


def test_several_budgets_in_a_file_all_apply(load):
    training = load("training: {duration: 0.5, total_updates: 3}").training
    assert (training.total_timesteps, training.duration, training.total_updates) == (None, 1800.0, 3)


# What a file may look like


def test_text_in_yaml_is_converted_by_the_type_of_the_setting(load):
    settings = load("training: {learning_rate: 5e-4, anneal_learning_rate: yes}\nenv: {use_backgrounds: no, name: no}")
    assert settings.training.learning_rate == 0.0005
    assert settings.training.anneal_learning_rate is True
    assert settings.env.use_backgrounds is False
    assert settings.env.name == "no"


def test_json_loads_like_yaml(load):
    data = {
        "algorithm": "ppo",
        "env": {"name": "CartPole-v1", "num_envs": 8, "use_backgrounds": False},
        "training": {"total_timesteps": 2e5, "learning_rate": 5e-4, "max_grad_norm": None, "n_minibatches": 4},
        "policy": {"hidden_sizes": [32, 16]},
        "hardware": None,
    }
    assert load(json.dumps(data), ".json") == load(yaml.safe_dump(data), ".yaml")


def test_a_single_layer_size_loads_from_json_as_from_yaml(load):
    assert load("policy: {hidden_sizes: 64}").policy.hidden_sizes == (64,)
    assert load('{"policy": {"hidden_sizes": 64}}', ".json").policy.hidden_sizes == (64,)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n"])
def test_an_empty_file_gives_the_defaults(load, text):
    assert load(text) == load_settings()


@pytest.mark.parametrize("text", ["{}", "null"])
def test_json_without_settings_gives_the_defaults(load, text):
    assert load(text, ".json") == load_settings()


@pytest.mark.parametrize("nothing", ["", "null", "~", "{}"])
def test_a_section_without_content_gives_its_defaults(load, nothing):
    assert load(f"training: {nothing}\n") == load_settings()


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_a_setting_without_a_value_is_not_set(load, nothing):
    assert load(f"training:\n  max_grad_norm: {nothing}\n").training.max_grad_norm is None


# The YAML blocks of the first user guides, verbatim, and how they differ from the defaults.
SEED_SNIPPETS = {
    "000 sequential": (
        """\
env:
  num_envs: 32  # Reduced for CPU efficiency

training:
  n_steps: 128  # Optimized for CPU memory
  batch_size: 1024  # CPU-friendly batch size
  n_epochs: 4

hardware:
  device: "cpu"
  num_threads: null  # Auto-detect
""",
        {},
    ),
    "000 cluster": (
        """\
cluster:
  num_workers: 4
  distributed_backend: "gloo"  # CPU-optimized backend
  master_addr: "localhost"
  master_port: 29500
""",
        {"cluster": {"num_workers": 4}},
    ),
    "002 sequential": (
        """\
env:
  name: "procgen-coinrun-v0"
  num_envs: 32              # Total environments
  seed: 42

training:
  n_steps: 128              # Steps per rollout
  batch_size: 1024          # Batch size
  n_epochs: 4               # Training epochs

hardware:
  device: "cpu"
  num_threads: null         # Auto-detect
""",
        {},
    ),
    "002 parallel": (
        """\
parallel:
  num_workers: 4            # Number of parallel workers
  num_envs_per_worker: 8    # Envs per worker (4×8 = 32 total)

training:
  n_steps: 128
  batch_size: 2048          # Larger batch for parallel
  n_epochs: 4

hardware:
  device: "cpu"
  num_threads: null         # Auto-detect per worker
""",
        {"parallel": {"num_workers": 4, "num_envs_per_worker": 8}, "training": {"batch_size": 2048}},
    ),
    "003 basic": (
        """\
parallel:
  num_workers: 4              # Number of worker processes
  num_envs_per_worker: 8      # Environments per worker

training:
  n_steps: 128                # Steps per rollout per worker
  batch_size: 2048            # Batch size for PPO (should be >= n_steps * total_envs)
  n_epochs: 4                 # Training epochs per update
""",
        {"parallel": {"num_workers": 4, "num_envs_per_worker": 8}, "training": {"batch_size": 2048}},
    ),
    "003 little memory": (
        """\
parallel:
  num_workers: 2              # Fewer workers
  num_envs_per_worker: 4      # Fewer envs per worker
""",
        {"parallel": {"num_workers": 2, "num_envs_per_worker": 4}},
    ),
    "003 maximum throughput": (
        """\
parallel:
  num_workers: 8              # Maximum parallelism
  num_envs_per_worker: 16     # More envs per worker

training:
  batch_size: 8192            # Larger batches
  n_epochs: 2                 # Fewer epochs for speed
""",
        # 8192 samples are more than the default rollout of 128 * 32: the whole rollout is one batch
        {"parallel": {"num_workers": 8, "num_envs_per_worker": 16}, "training": {"batch_size": 4096, "n_epochs": 2}},
    ),
}


@pytest.mark.parametrize("name", SEED_SNIPPETS)
def test_every_yaml_block_of_the_first_guides_loads_unchanged(load, name):
    text, differences = SEED_SNIPPETS[name]
    expected = load_settings().to_dict()
    for section, values in differences.items():
        expected[section].update(values)
    assert load(text).to_dict() == expected


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_impala_without_a_file_has_the_measured_configuration(mode):
    file = load_settings(file=CONFIGS / f"impala_{mode}.yaml")
    assert load_settings("impala", mode).to_dict() == file.to_dict()


@pytest.mark.parametrize("file", RUN_CONFIGS, ids=lambda file: file.name)
def test_every_file_in_configs_loads(file):
    load_settings(file=file)


# What can be wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env: {num_env: 8}", "env.num_env: unknown setting; did you mean env.num_envs?"),
        ("n_steps: 8", "n_steps: unknown setting; did you mean training.n_steps?"),
        ("training: {num_envs: 8}", "training.num_envs: unknown setting; did you mean env.num_envs?"),
        ("trainning: {n_steps: 8}", "trainning: unknown setting; did you mean training?"),
        (
            "policy: {zzz: 8}",
            "policy.zzz: unknown setting; known here: network, hidden_sizes, init_from, init_with",
        ),
        (
            "zzz: 8",
            "zzz: unknown setting; known here: algorithm, mode, env, training, policy, parallel, hardware, cluster, "
            "output",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(refusal, text, message):
    assert refusal(text) == message


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("env: {num_envs: many}", "env.num_envs=many: input should be a valid integer"),
        ("env: {num_envs: 0.5}", "env.num_envs=0.5: input should be a valid integer"),
        ("env: {num_envs: [8]}", "env.num_envs=['8']: input should be a valid integer"),
        ("env: {name: [coinrun]}", "env.name=['coinrun']: input should be a valid string"),
        ("env: {name: null}", "env.name=None: input should be a valid string"),
        ("env: {use_backgrounds: maybe}", "env.use_backgrounds=maybe: input should be a valid boolean"),
        ("training: {gamma: high}", "training.gamma=high: input should be a valid number"),
        ("training: {duration: soon}", "training.duration=soon: should be hours (0.5) or a number with a unit"),
        ("training: {n_steps: null}", "training.n_steps=None: input should be a valid integer"),
        (
            "policy: {network: resnet}",
            "policy.network=resnet: input should be 'impala', 'nature' or 'mlp'",
        ),
        ("policy: {hidden_sizes: '64,x'}", "policy.hidden_sizes=x: input should be a valid integer"),
        ("hardware: {device: cuda}", "hardware.device=cuda: input should be 'cpu'"),
        ("algorithm: dqn", "algorithm=dqn: input should be 'ppo'"),
        ("algorithm: [ppo]", "algorithm=['ppo']: input should be 'ppo'"),
        ("mode: fast", "mode=fast: input should be 'sequential', 'parallel' or 'distributed'"),
        ("training: 5", "training=5: input should be a valid dictionary"),
        ("training: [5]", "training=['5']: input should be a valid dictionary"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_name_and_value(refusal, text, start):
    message = refusal(text)
    assert message.startswith(start)
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "env: {num_envs: 0}",
        "env: {num_envs: -8}",
        "env: {seed: -1}",
        "env: {num_levels: -1}",
        "env: {seed: 1e30}",  # the random streams take 64 bits
        "env: {num_levels: 3e9}",  # Procgen's options are 32-bit integers
        "env: {start_level: 3e9}",
        "training: {n_steps: 0}",
        "training: {learning_rate: 0}",
        "training: {learning_rate: nan}",
        "training: {learning_rate: inf}",
        "training: {gamma: 1.01}",
        "training: {gamma: nan}",
        "training: {gae_lambda: -0.1}",
        "training: {clip_range: 0}",
        "training: {entropy_coefficient: -0.01}",
        "training: {total_timesteps: 0}",
        "training: {duration: 0}",
        "policy: {hidden_sizes: []}",
        "policy: {hidden_sizes: [64, 0]}",
        "hardware: {num_threads: 0}",
        "cluster: {master_port: 65536}",
        "output: {checkpoint_seconds: 0}",
        "output: {keep_checkpoints: 0}",
    ],
)
def test_an_impossible_value_is_refused(refusal, text):
    section, name = re.match(r"(\w+): {(\w+)", text).groups()
    assert refusal(text).startswith(f"{section}.{name}=")


def test_all_problems_are_listed_in_one_message(refusal):
    text = """
        algorithm: ppo
        envs: {}
        env: {num_env: 8, name: null}
        training: {gamma: 2, batch_size: 1000, rmsprop_decay: 0.9}
        hardware: {num_threads: none}
        """
    assert refusal(text).splitlines() == [
        "7 problems in the settings:",
        "  env.name=None: input should be a valid string",
        "  env.num_env: unknown setting; did you mean env.num_envs?",
        "  training.gamma=2: input should be less than or equal to 1",
        "  hardware.num_threads=none: input should be a valid integer, unable to parse string as an integer",
        "  envs: unknown setting; did you mean env?",
        "  training.batch_size=1000 does not divide n_steps * num_envs = 128 * 32 = 4096; use 1024 or 512",
        "  training.rmsprop_decay=0.9 has no effect with training.optimizer=adam; remove it",
    ]


def test_an_invalid_setting_is_not_reported_again_by_those_that_depend_on_it(refusal):
    message = refusal("env: {num_envs: many}\ntraining: {batch_size: 1000}")
    assert message == "env.num_envs=many: input should be a valid integer, unable to parse string as an integer"


def test_a_flag_does_not_hide_an_invalid_section_of_the_file(refusal):
    message = refusal("training: 5", flags={"training.n_steps": "64"})
    assert message.startswith("training=5: input should be a valid dictionary")


def test_a_value_of_several_lines_is_refused_in_one_line(refusal):
    assert "\n" not in refusal("env:\n  num_envs: |\n    one\n    two\n")


@pytest.mark.parametrize("text", ["- env", "[1, 2]", "words", "'training: {n_steps: 8}'"])
def test_a_file_without_sections_is_refused(refusal, text):
    assert refusal(text).endswith("settings.yaml: should be a mapping of settings, not a list or a string")


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("env: [", ".yaml"),
        ("a: b: c", ".yaml"),
        ("\x00", ".yaml"),
        ('{"env"', ".json"),
        ("env: {}", ".json"),
        ("", ".json"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(refusal, text, suffix):
    message = refusal(text, suffix)
    assert f"settings{suffix}: not readable as {suffix}" in message
    assert "\n" not in message


def test_a_binary_file_is_refused_in_one_line(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\xff\xfe\x00env")
    with pytest.raises(
        UserError, match=r"settings\.yaml: not readable as \.yaml: byte 0 is not UTF-8; save it as UTF-8"
    ) as caught:
        read_file(file)
    assert "\n" not in str(caught.value)


def test_a_duplicate_section_is_refused(refusal):
    message = refusal("training: {n_steps: 64}\n\ntraining: {n_epochs: 2}")
    assert message.endswith("not readable as .yaml: training is given twice, in lines 1 and 3")


def test_a_duplicate_setting_is_refused_in_yaml_and_json(refusal):
    yaml_message = refusal("env:\n  num_envs: 2\n  seed: 1\n  num_envs: 4\n")
    assert yaml_message.endswith("not readable as .yaml: num_envs is given twice, in lines 2 and 4")
    json_message = refusal('{"env": {"num_envs": 2, "num_envs": 4}}', ".json")
    assert json_message.endswith("not readable as .json: num_envs is given twice, in line 1")


def test_a_duplicate_setting_of_json_is_named_with_its_lines(refusal):
    for indent in ("  ", "\t"):
        text = f'{{\n{indent}"training": {{"n_steps": 8}},\n{indent}"env": {{\n"seed": 1,\n{indent}"seed": 2}}\n}}'
        assert refusal(text, ".json").endswith("not readable as .json: seed is given twice, in lines 4 and 5")
    section = '{"env": {"seed": 1},\n "training": {},\n "env": {"num_envs": 2}}'
    assert refusal(section, ".json").endswith("not readable as .json: env is given twice, in lines 1 and 3")


def test_a_duplicate_key_of_json_that_yaml_cannot_read_is_refused_too(refusal):
    long = "x" * 2000  # longer than YAML's keys may be
    assert " is given twice" in refusal(f'{{"{long}": 1, "{long}": 2}}', ".json")


@pytest.mark.parametrize(("text", "suffix"), [("a: " + "[" * 5000, ".yaml"), ('{"a": ' + "[" * 5000, ".json")])
def test_a_file_that_is_nested_without_end_is_refused_in_one_line(refusal, text, suffix):
    assert refusal(text, suffix).endswith(
        f"settings{suffix}: nested too deeply; settings have sections, and sections have values"
    )


def test_of_many_problems_only_the_first_are_listed(refusal):
    lines = refusal("".join(f"key{k}: 1\n" for k in range(2500))).splitlines()
    assert lines[0] == "2,500 problems in the settings:"
    assert lines[-1] == f"  and {2500 - MAX_LISTED:,} more"
    assert len(lines) == 2 + MAX_LISTED


def test_a_few_lines_that_describe_a_list_of_millions_are_refused_in_a_short_message(refusal):
    lines = ["a0: &a0 [x, x]", *(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 60))]
    bomb = "\n".join([*lines, "training: {optimizer: *a59, gamma: *a59}", "env: *a59"])
    assert len(refusal(bomb)) < 10_000


def test_a_file_that_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo.yaml")
    for file in (tmp_path / "fifo.yaml", Path("/dev/zero")):
        with pytest.raises(
            UserError, match=f"--config {file}: Not a regular file; give the path of a YAML or JSON file"
        ):
            load_settings(file=file)


def test_a_file_that_is_too_large_for_settings_is_refused(refusal):
    assert "settings.yaml: Larger than 64 KiB; give the path of a" in refusal("#" * (64 * 1024 + 1))
    assert refusal("#" * 64 * 1024 + "\nenv: {x: 1}").count("Larger") == 1


def test_every_setting_fits_into_a_file_many_times():
    assert 10 * len(Settings().to_yaml()) < MAX_FILE_BYTES


def test_a_missing_file_is_refused(tmp_path):
    file = tmp_path / "missing.yaml"
    message = f"--config {file}: No such file or directory; give the path of a YAML or JSON file"
    with pytest.raises(UserError, match=re.escape(message)):
        load_settings(file=file)


def test_a_directory_instead_of_a_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="Is a directory; give the path of a YAML or JSON file"):
        load_settings(file=tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("a2c", "batch_size", "64"),
        ("a2c", "n_minibatches", "4"),
        ("a2c", "n_epochs", "4"),
        ("a2c", "clip_range", "0.2"),
        ("a2c", "clip_value_range", "0.2"),
        ("a2c", "target_kl", "0.01"),
    ],
)
def test_a_setting_without_effect_for_the_algorithm_is_refused(refusal, algorithm, name, value):
    expected = f"training.{name}={value} has no effect with {algorithm}; remove it"
    assert refusal(f"algorithm: {algorithm}\ntraining: {{{name}: {value}}}") == expected
    assert refusal("", algorithm=algorithm, flags={f"training.{name}": value}) == expected


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "name"),
    [
        ("ppo", "adam", "rmsprop_decay"),
        ("ppo", "rmsprop", "adam_epsilon"),
        ("a2c", "rmsprop", "adam_epsilon"),
        ("impala", "adam", "rmsprop_epsilon"),
        ("a3c", "adam", "rmsprop_decay"),
        ("a3c", "rmsprop", "adam_epsilon"),
    ],
)
def test_a_setting_of_a_different_optimiser_is_refused(refusal, algorithm, optimizer, name):
    expected = f"training.{name}=0.1 has no effect with training.optimizer={optimizer}; remove it"
    given = f"algorithm: {algorithm}\ntraining: {{optimizer: {optimizer}, {name}: 0.1}}"
    assert refusal(given) == expected


def test_a_limit_on_values_without_a_clipped_loss_is_refused(refusal, load):
    text = "algorithm: impala\ntraining: {clip_range: null, clip_value_range: %s}"
    assert refusal(text % "0.2") == (
        "training.clip_value_range=0.2 has no effect with training.clip_range=null; remove it"
    )
    assert load(text % "null").loss == "a2c_loss"


def test_a_loss_without_clipping_replaces_the_limit_on_values_in_a_lower_layer(load):
    text = "algorithm: impala\ntraining: {clip_range: 0.2, clip_value_range: 0.1}"
    assert load(text).training.clip_value_range == 0.1
    assert load(text, flags={"training.clip_range": "null"}).loss == "a2c_loss"


def test_an_optimiser_replaces_the_settings_of_the_optimiser_in_a_lower_layer(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("algorithm: impala\ntraining: {rmsprop_epsilon: 0.1, gamma: 0.9}")
    training = load_settings(file=file, flags={"training.optimizer": "adam"}).training
    assert (training.optimizer, training.rmsprop_epsilon, training.gamma) == ("adam", 1e-5, 0.9)
    training = load_settings(file=file, flags={"training.optimizer": "rmsprop"}).training
    assert (training.rmsprop_epsilon, training.gamma) == (0.1, 0.9)


def test_a_null_optimiser_over_a_file_means_the_algorithms_own(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("algorithm: a2c\ntraining: {optimizer: adam, adam_epsilon: 0.1}")
    settings = load_settings(file=file, flags={"training.optimizer": "null"})
    assert (settings.optimizer, settings.training.adam_epsilon) == ("rmsprop", 1e-5)


# Batch sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training: {batch_size: 1000}",
            "training.batch_size=1000 does not divide n_steps * num_envs = 128 * 32 = 4096; use 1024 or 512",
        ),
        (  # divides 4096, but 16 samples are not a whole step of 32 environments
            "training: {batch_size: 16}",
            "training.batch_size=16 does not give whole steps per environment in n_steps * num_envs = 128 * 32 = 4096; "
            "use 64 or 32",
        ),
        (
            "training: {n_minibatches: 3}",
            "training.n_minibatches=3 does not divide training.n_steps=128; use 4 or 2",
        ),
        (
            "training: {batch_size: 1024, n_minibatches: 4}",
            "training.batch_size=1024 and training.n_minibatches=4: give one of them",
        ),
    ],
)
def test_an_uneven_batch_size_is_refused_with_even_ones(refusal, text, message):
    assert refusal(text) == message


def comes_out_even(n_steps: int, num_envs: int, batch_size: int) -> bool:
    """Literally: minibatches of `batch_size` partition the steps of each environment without a remainder."""
    steps_per_minibatch, rest = divmod(min(batch_size, n_steps * num_envs), num_envs)
    return rest == 0 and steps_per_minibatch > 0 and n_steps % steps_per_minibatch == 0


@hypothesis_settings(deadline=None)
@given(n_steps=st.integers(1, 300), num_envs=st.integers(1, 100), batch_size=st.integers(1, 40_000))
def test_a_batch_size_is_accepted_if_even_and_the_suggested_ones_are(n_steps, num_envs, batch_size):
    def load_with(size: int) -> Settings:
        flags = {"training.n_steps": n_steps, "env.num_envs": num_envs, "training.batch_size": size}
        return load_settings(flags=flags)

    if comes_out_even(n_steps, num_envs, batch_size):
        assert load_with(batch_size).batch_size == min(batch_size, n_steps * num_envs)
        return
    with pytest.raises(UserError) as caught:
        load_with(batch_size)
    suggested = [int(number) for number in re.findall(r"\d+", str(caught.value).split("; use ")[1])]
    assert 1 <= len(suggested) <= 2
    for size in suggested:
        assert comes_out_even(n_steps, num_envs, size)
        assert load_with(size).batch_size == size


@hypothesis_settings(deadline=None)
@given(n_steps=st.integers(1, 300), num_envs=st.integers(1, 100), n_minibatches=st.integers(1, 400))
def test_n_minibatches_is_accepted_if_it_divides_the_steps_and_the_suggested_ones_do(n_steps, num_envs, n_minibatches):
    def load_with(count: int) -> Settings:
        flags = {"training.n_steps": n_steps, "env.num_envs": num_envs, "training.n_minibatches": count}
        return load_settings(flags=flags)

    if n_steps % n_minibatches == 0:
        assert load_with(n_minibatches).num_minibatches == n_minibatches
        return
    with pytest.raises(UserError) as caught:
        load_with(n_minibatches)
    suggested = [int(number) for number in re.findall(r"\d+", str(caught.value).split("; use ")[1])]
    assert 1 <= len(suggested) <= 2
    for count in suggested:
        assert load_with(count).num_minibatches == count


@pytest.mark.timeout(2)
def test_a_huge_number_of_steps_is_validated_quickly(refusal):
    assert "training.n_steps=1e15: input should be less than or equal to 1048576" in refusal(
        "training: {n_steps: 1e15}"
    )
    assert "batch_size=1000" in refusal("training: {n_steps: 1048576, batch_size: 1000}")


def test_the_flag_num_envs_per_worker_replaces_num_envs_of_the_file(tmp_path):
    file = tmp_path / "parallel.yaml"
    file.write_text("mode: parallel\nenv:\n  num_envs: 32\n")
    flags = {"parallel.num_workers": "8", "parallel.num_envs_per_worker": "8"}
    assert load_settings("ppo", file=file, flags=flags).env.num_envs == 64
    with pytest.raises(UserError, match="leave one of them out"):
        load_settings("ppo", file=file, flags={**flags, "env.num_envs": "32"})


def test_the_flag_num_envs_replaces_num_envs_per_worker_of_the_file(tmp_path):
    file = tmp_path / "parallel.yaml"
    file.write_text("mode: parallel\nparallel:\n  num_workers: 4\n  num_envs_per_worker: 8\n")
    assert load_settings("ppo", file=file, flags={"env.num_envs": "64"}).env.num_envs == 64


def test_of_several_files_the_later_wins_and_an_alternative_in_it_replaces_its_group(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("env: {name: maze, num_envs: 8}\ntraining: {n_steps: 64, batch_size: 64}\n")
    second.write_text("env: {num_envs: 16}\ntraining: {n_minibatches: 2}\nhardware: {num_threads: 1}\n")
    settings = load_settings("ppo", None, [first, second])
    assert (settings.env.name, settings.env.num_envs, settings.hardware.num_threads) == ("maze", 16, 1)
    assert settings.batch_size == 16 * 64 // 2
    assert load_settings("ppo", None, [second, first]).env.num_envs == 8
