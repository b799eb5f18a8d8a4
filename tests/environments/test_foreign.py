"""The environment's own code: wherever it exits, the run says so; wherever it is called, a watcher can see it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlcluster import environments
from rlcluster.environments.interface import VectorEnvironment
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError
from rlcluster.system.heartbeat import CALLS, MAKING
from rlcluster.system.signals import StopRequest

from conftest import rlcluster

seen: list[tuple[str, str]] = []  # the calls that environments of this file were in, and what they were marked as
fault: dict[str, BaseException] = {}  # what to raise, by call


def visit(call: str) -> None:
    seen.append((call, CALLS.running))
    if call in fault:
        raise fault[call]


class Nosy(gymnasium.Env[Any, Any]):
    """Looks at what it is called for."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        visit("constructor")
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        visit("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        visit("step")
        return np.zeros(2, np.float32), 0.0, True, False, {}

    def render(self) -> Any:
        visit("render")
        return np.zeros((4, 4, 3), np.uint8)

    def close(self) -> None:
        visit("close")


class Cover(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        visit("wrapper")


SETTINGS = EnvSettings.model_validate({"name": "Nosy-v0", "wrappers": [f"{__name__}:Cover"]})


@pytest.fixture(autouse=True)
def _nosy() -> Iterator[None]:
    gymnasium.register("Nosy-v0", Nosy)
    yield
    gymnasium.registry.pop("Nosy-v0")
    seen.clear()
    fault.clear()


def use_everything() -> None:
    environments.describe(SETTINGS)
    vector: VectorEnvironment = environments.make(SETTINGS, range(2), with_frames=True)
    vector.step(np.zeros(2, np.int64))
    vector.restore(vector.save() or [])
    environments.check_states(SETTINGS, vector.save() or [])
    vector.frame()
    vector.close()


def test_every_call_into_an_environment_is_marked_for_its_watcher() -> None:
    use_everything()
    marked: dict[str, set[str]] = {}
    for call, mark in seen:
        marked.setdefault(call, set()).add(mark)
    assert marked == {
        "constructor": {MAKING},
        "wrapper": {MAKING},
        "reset": {MAKING, "step"},
        "step": {"step"},
        "render": {"frame"},
        "close": {MAKING, "close()"},
    }
    assert CALLS.running == ""


@pytest.mark.parametrize("call", ["constructor", "wrapper", "reset", "step", "render", "close"])
def test_an_environment_that_exits_anywhere_is_an_error_in_one_line(call: str) -> None:
    fault[call] = SystemExit(0)
    with pytest.raises(UserError, match=r"^env\.(name|wrappers)=.*(sys\.exit\(0\)|SystemExit: 0)") as caught:
        use_everything()
    assert caught.value.exit_code in (1, 2)
    assert "\n" not in str(caught.value)
    assert CALLS.running == ""


@pytest.mark.parametrize("call", ["constructor", "reset", "step", "close"])
def test_an_environment_that_raises_keyboard_interrupt_is_named_where_ctrl_c_raises_none(call: str) -> None:
    fault[call] = KeyboardInterrupt()
    with StopRequest(), pytest.raises(UserError, match=r"env.name=Nosy-v0: the environment raised KeyboardInterrupt; "):
        use_everything()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        use_everything()


def test_a_wrapper_that_raises_is_named_with_its_line() -> None:
    fault["wrapper"] = ValueError("no such factor")
    with pytest.raises(UserError) as caught:
        environments.describe(SETTINGS)
    start = f"env.wrappers={__name__}:Cover with the arguments {{}}: ValueError: no such factor ({__file__}, line "
    assert str(caught.value).startswith(start)


EXITING = """
import sys
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Leaving(CartPoleEnv):
    def close(self):
        sys.exit(0)

gymnasium.register("Leaving-v0", Leaving)

def make_network(spec, settings):
    sys.exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--env", "leaving:Leaving-v0"], 1, "env.name=leaving:Leaving-v0: the environment called sys.exit(0); let it"),
        (["--env", "CartPole-v1", "--network", "leaving:make_network"], 2, "cannot be made: SystemExit: 0 ("),
    ],
    ids=["environment", "network"],
)
def test_code_of_the_user_that_exits_is_never_silent(given: list[str], code: int, message: str, tmp_path: Any) -> None:
    (tmp_path / "leaving.py").write_text(EXITING)
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", "--total-updates", "1", *given, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
