"""The user's own environments: by module, with arguments, wrappers and stacked observations."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcluster import environments
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError

MODULE = '''
import gymnasium
import numpy as np

class Corridor(gymnasium.Env):
    """Walk right until the end; after 5 steps it is cut off."""
    observation_space = gymnasium.spaces.Box(0, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=3, render_mode=None):
        self.size, self.render_mode = size, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return np.array([self.place, self.size], np.float32), {}

    def step(self, action):
        self.place, self.time = self.place + action, self.time + 1
        is_there = self.place == self.size
        return np.array([self.place, self.size], np.float32), float(is_there), is_there, self.time == 5, {}

class Scale(gymnasium.ObservationWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def observation(self, observation):
        return observation * np.float32(self.factor)

def not_a_wrapper(env):
    return "nothing"

gymnasium.register("Corridor-v0", Corridor)
'''
CORRIDOR = "own_corridor:Corridor-v0"


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_corridor.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # what is added is removed again
    sys.modules.pop("own_corridor", None)


def settings(**given: Any) -> EnvSettings:
    return load_settings(flags={f"env.{key}": value for key, value in {"name": CORRIDOR, **given}.items()}).env


@pytest.mark.usefixtures("_module")
def test_a_module_of_this_folder_registers_an_environment_that_gets_its_arguments() -> None:
    vector = environments.make(settings(kwargs='{"size": 4}'), range(2))
    assert vector.observations.tolist() == [[0, 4], [0, 4]]
    vector.step(np.array([1, 0]))
    assert vector.observations.tolist() == [[1, 4], [0, 4]]


@pytest.mark.usefixtures("_module")
def test_wrappers_are_applied_in_order_with_their_arguments() -> None:
    wrappers = '["own_corridor:Scale", {"own_corridor:Scale": {"factor": 0.25}}]'
    vector = environments.make(settings(wrappers=wrappers), range(1))
    assert vector.observations.tolist() == [[0, 1.5]]


@pytest.mark.usefixtures("_module")
def test_stacked_observations_begin_with_copies_and_keep_the_true_last_one() -> None:
    """Size 9: nobody arrives. Five steps to the right, then the episode is cut off."""
    env = settings(kwargs='{"size": 9}', frame_stack=3)
    assert environments.describe(env).observation_shape == (6,)
    vector = environments.make(env, range(1))
    assert vector.observations.tolist() == [[0, 9, 0, 9, 0, 9]]
    for _ in range(4):
        step = vector.step(np.array([1]))
    assert vector.observations.tolist() == [[2, 9, 3, 9, 4, 9]]
    assert not step.final_observations
    step = vector.step(np.array([1]))
    assert step.final_observations[0].tolist() == [3, 9, 4, 9, 5, 9]
    assert vector.observations.tolist() == [[0, 9, 0, 9, 0, 9]]


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize("name", [CORRIDOR, "starpilot"])
def test_a_restored_stack_plays_on_bit_for_bit(name: str) -> None:
    env = settings(name=name, frame_stack=4)
    one, other = environments.make(env, range(2)), environments.make(env, range(2), position=1)
    for _ in range(3):
        one.step(np.array([1, 0]))
    states = one.save()
    assert states is not None
    other.restore(states)
    for _ in range(4):
        np.testing.assert_array_equal(one.observations, other.observations)
        one.step(np.array([1, 0]))
        other.step(np.array([1, 0]))


@pytest.mark.usefixtures("_module")
def test_the_bounds_of_observations_are_those_after_wrappers_and_stacking() -> None:
    rescaled = '[{"gymnasium.wrappers:RescaleObservation": {"min_obs": -1.0, "max_obs": 2.0}}]'
    for env, low, high in (
        (settings(), [0, 0], [100, 100]),
        (settings(wrappers=rescaled), [-1, -1], [2, 2]),
        (settings(wrappers=rescaled, frame_stack=2), [-1] * 4, [2] * 4),
        (settings(name="MountainCar-v0", frame_stack=2), [-1.2, -0.07] * 2, [0.6, 0.07] * 2),
    ):
        for bound, expected in zip(environments.describe(env).bounds(), (low, high), strict=True):
            np.testing.assert_array_equal(bound, np.array(expected, np.float32))


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "starpilot"])
def test_a_spec_is_the_same_in_each_process(name: str) -> None:
    env = settings(name=name, frame_stack=2)
    spec, made = environments.describe(env), environments.make(env, range(2)).spec
    assert spec == made == pickle.loads(pickle.dumps(spec))
    assert hash(spec) == hash(made)
    assert len(pickle.dumps(spec)) < 500, "images have one bound for all numbers"


def test_stacked_images_have_more_channels() -> None:
    spec = environments.describe(EnvSettings(name="coinrun", frame_stack=2))
    assert (spec.observation_shape, spec.is_image) == ((64, 64, 6), True)


def test_arguments_survive_the_settings_file_with_their_types() -> None:
    given = settings(kwargs='{"a": "7", "b": 7, "c": [1.5, null, true]}', wrappers='[{"m:W": {"x": "1"}}, "m:V"]')
    again = EnvSettings.model_validate(given.model_dump(mode="json"))
    assert again == given
    assert given.kwargs == {"a": "7", "b": 7, "c": [1.5, None, True]}
    assert given.wrappers == (("m:W", {"x": "1"}), ("m:V", {}))


def test_arguments_in_a_settings_file_are_read_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("env:\n  kwargs: {size: 7, slippery: no}\n  wrappers:\n    - m:V\n    - m:W: {low: 0.5}\n")
    env = load_settings(file=file).env
    assert (env.kwargs, env.wrappers) == ({"size": 7, "slippery": False}, (("m:V", {}), ("m:W", {"low": 0.5})))


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"name": "coinrnu"}, "env.name=coinrnu: Environment `coinrnu` doesn't exist; did you mean coinrun?"),
        ({"name": "nowhere:Corridor-v0"}, "env.name=nowhere:Corridor-v0: there is no module nowhere in "),
        ({"kwargs": '{"length": 3}'}, f"env.name={CORRIDOR} with env.kwargs={{'length': 3}} cannot be made: "),
        ({"wrappers": "own_corridor:Scal"}, "env.wrappers=own_corridor:Scal: own_corridor has no Scal; did you mean"),
        (
            {"wrappers": '[{"own_corridor:Scale": {"by": 2}}]'},
            "env.wrappers=own_corridor:Scale with the arguments {",
        ),
        ({"wrappers": "own_corridor:not_a_wrapper"}, "env.wrappers=own_corridor:not_a_wrapper made a str; it should"),
        ({"name": "coinrun", "kwargs": '{"size": 3}'}, "env.kwargs={'size': 3} applies to Gymnasium environments; "),
        ({"name": "coinrun", "wrappers": "m:W"}, "env.wrappers=m:W applies to Gymnasium environments; coinrun has "),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(given: dict[str, Any], start: str) -> None:
    with pytest.raises(UserError) as error:
        environments.describe(settings(**given))
    assert str(error.value).startswith(start)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kwargs", "size=3", 'should be a mapping, as JSON on the command line: {"size": 7}'),
        ("wrappers", "Scale", "should be import paths such as my_module:Scale"),
        ("wrappers", "7", 'should be a list such as ["my_module:Scale", {"my_module:Clip": {"low": 0}}]'),
    ],
)
def test_arguments_that_are_none_are_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        settings(**{key: value})
    assert str(error.value) == f"env.{key}={value}: {problem}"


@pytest.mark.usefixtures("_module")
def test_an_environment_without_frames_is_refused_in_one_line() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*render_modes")  # Gymnasium's would be two more lines
        vector = environments.make(settings(), range(1), with_frames=True)
    with pytest.raises(UserError) as error:
        vector.frame()
    assert str(error.value) == (
        f"env.name={settings().name} cannot be rendered: its render() gives no frames [H, W, 3] with "
        'render_mode="rgb_array"; evaluate it without --video and --render'
    )
