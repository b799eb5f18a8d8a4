"""The settings: defaults, derived values, conversions and the round trip through YAML."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlcluster.flags import FLAG_NAMES
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import (
    EnvSettings,
    Settings,
    TrainingSettings,
    setting_fields,
)
from rlcluster.settings.values import parse_count, parse_duration, parse_sizes
from rlcluster.system.errors import UserError


def test_the_defaults_are_those_of_the_first_configuration():
    settings = load_settings()
    assert (settings.algorithm, settings.mode) == ("ppo", "sequential")
    assert (settings.env.name, settings.env.num_envs, settings.env.seed) == ("procgen-coinrun-v0", 32, 42)
    assert (settings.training.n_steps, settings.batch_size, settings.n_epochs) == (128, 1024, 4)
    assert (settings.hardware.device, settings.hardware.num_threads) == ("cpu", None)
    assert (settings.cluster.distributed_backend, settings.cluster.master_addr) == ("gloo", "localhost")
    assert settings.cluster.master_port == 29500


def test_a_run_without_a_budget_gets_the_25_million_steps_of_procgens_easy_protocol():
    training = load_settings().training
    assert (training.total_timesteps, training.duration, training.total_updates) == (25_000_000, None, None)


def test_a2c_has_the_defaults_of_its_paper():
    settings = load_settings(algorithm="a2c")
    training = settings.training
    assert (settings.env.num_envs, training.n_steps, training.gamma) == (16, 5, 0.99)
    assert (settings.optimizer, training.learning_rate) == ("rmsprop", 7e-4)
    assert (training.rmsprop_decay, training.rmsprop_epsilon) == (0.99, 1e-5)
    assert (training.entropy_coefficient, training.value_coefficient, training.max_grad_norm) == (0.01, 0.5, 0.5)
    assert training.gae_lambda == 1.0
    assert training.normalize_advantages is False


@pytest.mark.parametrize("section", ["env", "training", "policy", "parallel", "hardware", "cluster", "output"])
def test_no_setting_can_be_changed_after_loading(section):
    settings = load_settings()
    part = getattr(settings, section)
    name = next(iter(type(part).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(part, name, getattr(part, name))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(settings, section, part)


def test_the_rollout_is_steps_times_environments_and_splits_into_minibatches():
    settings = Settings(env=EnvSettings(num_envs=8), training=TrainingSettings(n_steps=256, batch_size=512))
    assert settings.rollout_size == 2048
    assert settings.batch_size == 512
    assert settings.num_minibatches == 4


def test_n_minibatches_gives_the_batch_size():
    settings = Settings(env=EnvSettings(num_envs=8), training=TrainingSettings(n_steps=256, n_minibatches=4))
    assert settings.batch_size == 512
    assert settings.num_minibatches == 4


@pytest.mark.parametrize("batch_size", [None, 4096, 8192])
def test_a_batch_is_at_most_the_whole_rollout(batch_size):
    settings = Settings(env=EnvSettings(num_envs=2), training=TrainingSettings(n_steps=64, batch_size=batch_size))
    assert settings.batch_size == 128
    assert settings.num_minibatches == 1


def test_a2c_learns_once_from_the_whole_rollout():
    settings = load_settings(algorithm="a2c")
    assert settings.rollout_size == 80
    assert (settings.batch_size, settings.num_minibatches, settings.n_epochs) == (80, 1, 1)


@pytest.mark.parametrize(
    ("algorithm", "mode", "run_name", "log_name"),
    [
        ("ppo", "sequential", "ppo_sequential", "PPO_Sequential"),
        ("ppo", "parallel", "ppo_parallel", "PPO_Parallel"),
        ("a2c", "distributed", "a2c_distributed", "A2C_Distributed"),
    ],
)
def test_files_and_logs_are_named_as_the_guides_say(algorithm, mode, run_name, log_name):
    settings = Settings(algorithm=algorithm, mode=mode)
    assert settings.run_name == run_name
    assert settings.log_name == log_name


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("1_000_000", 1_000_000),
        ("25e6", 25_000_000),
        (25e6, 25_000_000),
        ("32", 32),
        (32, 32),
        ("1.0", 1),
        (2**63, 2**63),
    ],
)
def test_a_count_may_be_written_in_many_ways(given, count):
    parsed = parse_count(given)
    assert parsed == count
    assert type(parsed) is int


@pytest.mark.parametrize("given", [0.5, "0.5", "many", "nan", "inf", "1e400", "-1", 0, [], "32 envs"])
def test_only_positive_whole_numbers_are_counts(given):
    with pytest.raises(UserError, match=r"training\.total_updates="):
        load_settings(flags={"training.total_updates": given})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("0.5", 1800.0),
        (0.5, 1800.0),
        (2, 7200.0),
        ("90s", 90.0),
        ("30m", 1800.0),
        ("2h", 7200.0),
        ("0.017", 61.2),
        (" 1.5 h ", 5400.0),
        ("1e-3h", 3.6),
    ],
)
def test_a_duration_is_in_hours_or_has_a_unit(given, seconds):
    assert parse_duration(given) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("given", ["soon", "", "1d", "2h30m", "h", "1..5", "--1", "nan", "inf", True, None, []])
def test_an_invalid_duration_is_refused_with_the_valid_forms(given):
    with pytest.raises(ValueError, match=r"should be hours \(0.5\) or a number with a unit \(90s, 30m, 2h\)"):
        parse_duration(given)


@pytest.mark.parametrize("given", ["0", "-1", "0s", "1e400"])
def test_a_duration_is_positive_and_finite(given):
    with pytest.raises(UserError, match=f"training.duration={given}: input should be"):
        load_settings(flags={"training.duration": given})


def test_layer_sizes_may_be_a_list_or_a_string():
    assert parse_sizes("64,32") == ["64", "32"]
    for sizes in ("64,32", " 64 , 32 ", [64, 32], ["64", "32"], (64, 32)):
        assert load_settings(flags={"policy.hidden_sizes": sizes}).policy.hidden_sizes == (64, 32)


# Non-default values for every kind of setting.
positive = st.floats(min_value=1e-300, max_value=1e300)
EITHER_ALGORITHM = {
    "env.name": st.sampled_from(["coinrun", "CartPole-v1", "no", "1e5", "a: b # c", "ALE/Pong-v5"]),
    "env.seed": st.integers(0, 2**31 - 1),
    "env.use_backgrounds": st.booleans(),
    "training.learning_rate": positive,
    "training.gamma": st.floats(0, 1),
    "training.max_grad_norm": st.none() | positive,
    "training.duration": positive.map(lambda seconds: f"{seconds!r}s"),
    "training.total_updates": st.integers(1, 10**12),
    "policy.network": st.sampled_from([None, "impala", "nature", "mlp"]),
    "policy.hidden_sizes": st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
    "hardware.num_threads": st.none() | st.integers(1, 512),
    "output.output_dir": st.none() | st.sampled_from(["runs/a", "2024", "true", "ä ö", "C: x", "- a", "'"]),
}
ONE_ALGORITHM = {
    "ppo": {
        "training.n_minibatches": st.sampled_from([1, 2, 4, 128]),
        "training.clip_value_range": st.none() | positive,
        "training.target_kl": st.none() | positive,
    },
    "a2c": {"training.rmsprop_decay": st.floats(0, 1), "training.rmsprop_epsilon": positive},
    "a3c": {"training.rmsprop_decay": st.floats(0, 1)},
    "impala": {"training.optimizer": st.sampled_from([None, "adam", "rmsprop"]), "training.rho_bar": positive},
}


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "a3c", "impala"])
@hypothesis_settings(deadline=None, max_examples=30)  # 20 ms each
@given(data=st.data())
def test_settings_survive_a_round_trip_through_yaml(algorithm, data, tmp_path_factory):
    flags = data.draw(st.fixed_dictionaries({}, optional={**EITHER_ALGORITHM, **ONE_ALGORITHM[algorithm]}))
    settings = load_settings(algorithm, flags=flags)
    file = tmp_path_factory.getbasetemp() / f"{algorithm}.yaml"
    file.write_text(settings.to_yaml(), encoding="utf-8")
    again = load_settings(file=file)
    assert again.to_dict() == settings.to_dict()
    assert again.training.duration == settings.training.duration  # in seconds, to the last bit
    assert (again.batch_size, again.num_minibatches) == (settings.batch_size, settings.num_minibatches)
    assert again.to_yaml() == settings.to_yaml()


def test_the_yaml_of_a_run_leaves_out_what_its_algorithm_does_not_use():
    ppo, a2c = load_settings("ppo").to_dict()["training"], load_settings("a2c").to_dict()["training"]
    only_ppo = {
        "batch_size",
        "n_minibatches",
        "n_epochs",
        "clip_range",
        "clip_value_range",
        "target_kl",
        "adam_epsilon",
    }
    assert ppo.keys() - a2c.keys() == only_ppo
    assert a2c.keys() - ppo.keys() == {"rmsprop_decay", "rmsprop_epsilon"}


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "a3c", "impala"])
def test_settings_without_an_optimiser_get_the_algorithms_own(algorithm):
    assert Settings(algorithm=algorithm).optimizer == load_settings(algorithm).optimizer
    written = load_settings(algorithm).to_dict()
    written["training"].pop("optimizer", None)  # as in runs from before the setting existed
    assert Settings.model_validate(written).to_dict() == load_settings(algorithm).to_dict()


def test_the_yaml_of_a_run_holds_only_the_settings_of_its_own_optimiser():
    trainings = [
        load_settings("impala", flags={"training.optimizer": name}).to_dict()["training"]
        for name in ("adam", "rmsprop")
    ]
    adam, rmsprop = (training.keys() for training in trainings)
    assert (adam - rmsprop, rmsprop - adam) == ({"adam_epsilon"}, {"rmsprop_decay", "rmsprop_epsilon"})


def test_every_setting_has_a_description():
    without = [field.key for field in setting_fields() if not field.info.description]
    assert without == []


def test_every_setting_has_a_flag_of_its_own():
    flags = [
        flag for field in setting_fields() for flag in FLAG_NAMES.get(field.key, ("--" + field.name.replace("_", "-"),))
    ]
    assert len(flags) == len(set(flags))


def test_every_renamed_flag_belongs_to_a_setting():
    assert FLAG_NAMES.keys() <= {field.key for field in setting_fields()}


def test_a_boolean_is_refused_as_a_number(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text('{"env": {"num_envs": true}, "training": {"learning_rate": true}}')
    with pytest.raises(UserError, match=r"env.num_envs=True(?s:.*)training.learning_rate=True"):
        load_settings(file=file)
