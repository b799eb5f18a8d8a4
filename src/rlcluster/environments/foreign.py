"""Every call into an environment's own code passes here. Whoever watches this process can see that one hangs, and none
can end it as if the command had finished.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rlcluster.environments.interface import Step, VectorEnvironment
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.heartbeat import CALLS


@contextmanager
def foreign_code(name: str, call: str) -> Iterator[None]:
    """Around the environment's own code; `call` is the noun that errors use."""
    with CALLS(call):
        try:
            yield
        except SystemExit as error:
            raise _refused(name, f"called sys.exit({error.code!r})") from None
        except KeyboardInterrupt:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise  # Ctrl-C
            raise _refused(name, "raised KeyboardInterrupt") from None


def _refused(name: str, what: str) -> UserError:
    return UserError(f"env.name={name}: the environment {what}; let it raise an error instead", EXIT_RUN_FAILED)


class ForeignEnvironments(VectorEnvironment):
    """Environments behind the guard. What only looks at arrays needs none."""

    def __init__(self, inner: VectorEnvironment, name: str) -> None:
        self._inner, self._name = inner, name
        self.spec, self.indices, self.observations = inner.spec, inner.indices, inner.observations

    def step(self, actions: NDArray[np.int64]) -> Step:
        with foreign_code(self._name, "step"):
            return self._inner.step(actions)

    def save(self) -> list[bytes] | None:
        with foreign_code(self._name, "saving"):
            return self._inner.save()

    def restore(self, states: list[bytes]) -> None:
        with foreign_code(self._name, "restoration"):
            self._inner.restore(states)

    def levels_completed(self) -> NDArray[np.bool_] | None:
        return self._inner.levels_completed()

    def level_seeds(self) -> NDArray[np.int32] | None:
        return self._inner.level_seeds()

    def frame(self) -> NDArray[np.uint8]:
        with foreign_code(self._name, "frame"):
            return self._inner.frame()

    def close(self) -> None:
        with foreign_code(self._name, "close()"):
            self._inner.close()
