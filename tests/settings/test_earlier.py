"""Runs of earlier versions keep the behaviour that they were started with."""

from rlcluster.settings.earlier import complete
from rlcluster.settings.loading import load_settings


def test_an_impala_run_without_recorded_minibatches_is_the_plain_one():
    recorded = {"algorithm": "impala", "training": {"n_steps": "32", "optimizer": "rmsprop"}}
    settings = load_settings(base=complete(recorded))
    assert settings.learns_in_one_pass
    assert (settings.loss, settings.num_minibatches, settings.n_epochs) == ("a2c_loss", 1, 1)


def test_what_is_recorded_stays():
    for settings in (load_settings("impala"), load_settings("ppo")):
        assert complete(settings.to_dict()) == settings.to_dict()


def test_a_limit_on_values_that_had_no_effect_is_dropped():
    recorded = {"algorithm": "impala", "training": {"clip_range": None, "clip_value_range": 0.2}}
    settings = load_settings(base=complete(recorded))
    assert "clip_value_range" not in settings.to_dict()["training"]
    assert load_settings(base=complete(settings.to_dict())).to_dict() == settings.to_dict()
