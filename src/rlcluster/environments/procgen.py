"""Procgen's 16 games through the engine's C library (the libenv interface), without gym and gym3.

Each environment is a separate engine instance (num = 1, no threads), seeded from (seed, i), so that its episodes do not
depend on its neighbours. All instances write into one frame buffer. Our own threads step them: calls into the engine
release the GIL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cffi import FFI
from numpy.typing import NDArray

from rlcluster.environments.construction import with_progress
from rlcluster.environments.interface import DamagedStateError, EnvironmentSpec, Step, VectorEnvironment
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError

SPEC = EnvironmentSpec((64, 64, 3), np.dtype(np.uint8), 15, low=0, high=255)
FRAME_SIZE = 512
MAX_STATE_BYTES = 2**20

DISTRIBUTION_MODES = {"easy": 0, "hard": 1, "extreme": 2, "memory": 10, "exploration": 1}
GAMES_WITH_MODE = {
    "extreme": {"chaser", "dodgeball", "leaper", "starpilot"},
    "memory": {"caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"},
}
EXPLORATION_LEVELS = {  # exploration is hard mode on one fixed level per game
    "coinrun": 1949448038,
    "caveflyer": 1259048185,
    "leaper": 1318677581,
    "jumper": 1434825276,
    "maze": 158988835,
    "heist": 876640971,
    "climber": 1561126160,
    "ninja": 1123500215,
}

# The libenv C interface, version 1, and Procgen's two state functions.
C_INTERFACE = """
typedef void libenv_env;
struct libenv_option { char name[128]; int dtype; int count; void *data; };
struct libenv_options { struct libenv_option *items; int count; };
struct libenv_buffers { void **ob; float *rew; uint8_t *first; void **info; void **ac; };
union libenv_value { uint8_t uint8; int32_t int32; float float32; };
struct libenv_tensortype {
    char name[128]; int scalar_type; int dtype; int shape[16]; int ndim;
    union libenv_value low; union libenv_value high;
};
int libenv_version();
libenv_env *libenv_make(int num, const struct libenv_options options);
int libenv_get_tensortypes(libenv_env *handle, int name, struct libenv_tensortype *types);
void libenv_set_buffers(libenv_env *handle, struct libenv_buffers *bufs);
void libenv_observe(libenv_env *handle);
void libenv_act(libenv_env *handle);
void libenv_close(libenv_env *handle);
int get_state(libenv_env *handle, int env_idx, char *data, int length);
void set_state(libenv_env *handle, int env_idx, char *data, int length);
"""
UINT8, INT32 = 1, 2  # libenv_dtype
INFO_SPACE = 3  # libenv_space_name


class ProcgenEnvironments(VectorEnvironment):
    """N instances of one game."""

    spec = SPEC

    def __init__(
        self, settings: EnvSettings, game: str, seeds: dict[int, int], with_frames: bool, num_threads: int
    ) -> None:
        self.indices = list(seeds)
        options = engine_options(settings, game)
        num = len(self.indices)
        engine = _engine()
        self._ffi: Any = engine.ffi
        self._library: Any = engine.library
        self.observations = np.zeros((num, *SPEC.observation_shape), np.uint8)
        self._actions = np.zeros(num, np.int32)
        self._rewards = np.zeros(num, np.float32)
        self._first = np.zeros(num, np.bool_)
        self._info: dict[str, NDArray[Any]] = {
            "level_seed": np.zeros(num, np.int32),
            "prev_level_seed": np.zeros(num, np.int32),
            "prev_level_complete": np.zeros(num, np.uint8),
        }
        if with_frames:
            self._info["rgb"] = np.zeros((1, FRAME_SIZE, FRAME_SIZE, 3), np.uint8)  # environment 0 alone
        self._never = np.zeros(num, np.bool_)
        self._alive: list[Any] = []  # C memory that the engine refers to
        self._handles = [
            self._start(k, {**options, "rand_seed": seed, "render_human": with_frames and k == 0})
            for k, seed in enumerate(with_progress(seeds.values()))
        ]
        self._num_threads = min(num_threads, num)
        self._threads = ThreadPoolExecutor(self._num_threads - 1) if self._num_threads > 1 else None

    def step(self, actions: NDArray[np.int64]) -> Step:
        self._actions[:] = actions
        others = []
        if self._threads is not None:
            others = [self._threads.submit(self._step_every, k) for k in range(1, self._num_threads)]
        self._step_every(0)
        for other in others:
            other.result()
        return Step(self._rewards, self._first, self._never, {})

    def save(self) -> list[bytes]:
        buffer = self._ffi.new(f"char[{MAX_STATE_BYTES}]")
        states = []
        for handle in self._handles:
            length = self._library.get_state(handle, 0, buffer, MAX_STATE_BYTES)
            state = bytes(self._ffi.buffer(buffer, length))
            states.append(hashlib.sha256(state).digest() + state)
        return states

    def restore(self, states: list[bytes]) -> None:
        if len(states) != self.num_envs:
            raise ValueError(f"{len(states)} states for {self.num_envs} environments")
        check_states(states)
        for handle, state in zip(self._handles, states, strict=True):
            self._library.set_state(handle, 0, state[32:], len(state) - 32)
            self._library.libenv_observe(handle)

    def levels_completed(self) -> NDArray[np.bool_]:
        return self._info["prev_level_complete"].astype(np.bool_)

    def level_seeds(self) -> NDArray[np.int32]:
        return self._info["level_seed"]

    def frame(self) -> NDArray[np.uint8]:
        return np.array(self._info.get("rgb", self.observations)[0], np.uint8)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        while self._handles:
            self._library.libenv_close(self._handles.pop())
        self._alive.clear()

    def _step_every(self, first: int) -> None:
        """One thread's share, interleaved with the others': some engines may be slower than others."""
        act, observe = self._library.libenv_act, self._library.libenv_observe
        for handle in self._handles[first :: self._num_threads]:
            act(handle)
            observe(handle)

    def _start(self, k: int, options: dict[str, Any]) -> Any:
        """Creates the engine of environment k and binds it to row k of the buffers (this resets it once)."""
        handle = self._library.libenv_make(1, self._c_options(options)[0])
        info_names = self._info_names(handle)
        buffers = self._ffi.new("struct libenv_buffers *")
        pointers = {
            "ob": self._pointers([self.observations[k]]),
            "info": self._pointers([self._info[name][k : k + 1] for name in info_names]),
            "ac": self._pointers([self._actions[k : k + 1]]),
        }
        for field, value in pointers.items():
            setattr(buffers, field, value)
        buffers.rew = self._ffi.cast("float *", self._rewards[k : k + 1].ctypes.data)
        buffers.first = self._ffi.cast("uint8_t *", self._first[k : k + 1].ctypes.data)
        self._alive += [pointers, buffers]
        self._library.libenv_set_buffers(handle, buffers)
        self._library.libenv_observe(handle)
        return handle

    def _pointers(self, arrays: Sequence[NDArray[Any]]) -> Any:
        return self._ffi.new("void *[]", [self._ffi.cast("void *", array.ctypes.data) for array in arrays])

    def _info_names(self, handle: Any) -> list[str]:
        """The order in which this engine expects its info buffers."""
        count = self._library.libenv_get_tensortypes(handle, INFO_SPACE, self._ffi.NULL)
        types = self._ffi.new(f"struct libenv_tensortype[{count}]")
        self._library.libenv_get_tensortypes(handle, INFO_SPACE, types)
        return [self._ffi.string(types[i].name).decode() for i in range(count)]

    def _c_options(self, options: dict[str, Any]) -> Any:
        items = self._ffi.new(f"struct libenv_option[{len(options)}]")
        for item, (name, value) in zip(items, options.items(), strict=True):
            item.name = name.encode()
            if isinstance(value, str):
                data = self._ffi.new("char[]", value.encode())
                item.dtype, item.count = UINT8, len(value.encode())
            elif isinstance(value, bool):
                data = self._ffi.new("uint8_t *", value)
                item.dtype, item.count = UINT8, 1
            else:
                data = self._ffi.new("int32_t *", value)
                item.dtype, item.count = INT32, 1
            item.data = data
            self._alive.append(data)
        c_options = self._ffi.new("struct libenv_options *", {"items": items, "count": len(options)})
        self._alive += [items, c_options]
        return c_options


def describe(settings: EnvSettings, game: str) -> EnvironmentSpec:
    """Raises a UserError if the engine is missing or the game does not have the mode."""
    engine_options(settings, game)
    _engine()
    return SPEC


def check_states(states: Sequence[bytes]) -> None:
    """By their hashes: the engine aborts the process on a damaged state."""
    for k, state in enumerate(states):
        if hashlib.sha256(state[32:]).digest() != state[:32]:
            raise DamagedStateError(k, "it does not match its hash")


def engine_options(settings: EnvSettings, game: str) -> dict[str, Any]:
    """The engine's options for these settings; raises a UserError for a mode the game does not have."""
    mode = settings.distribution_mode
    supported = GAMES_WITH_MODE.get(mode) or (EXPLORATION_LEVELS if mode == "exploration" else None)
    if supported is not None and game not in supported:
        raise UserError(
            f"env.distribution_mode={mode}: {game} has no such mode; "
            f"use easy or hard, or one of the games {', '.join(sorted(supported))}"
        )
    exploring = mode == "exploration"
    return {
        "env_name": game,
        "num_levels": 1 if exploring else settings.num_levels,
        "start_level": EXPLORATION_LEVELS[game] if exploring else settings.start_level,
        "num_actions": SPEC.num_actions,
        "use_sequential_levels": settings.use_sequential_levels,
        "debug_mode": 0,
        "num_threads": 0,
        "resource_root": str(_engine_folder() / "assets") + "/",
        "center_agent": settings.center_agent,
        "use_generated_assets": settings.use_generated_assets,
        "use_monochrome_assets": settings.use_monochrome_assets,
        "restrict_themes": settings.restrict_themes,
        "use_backgrounds": settings.use_backgrounds,
        "paint_vel_info": settings.paint_vel_info,
        "distribution_mode": DISTRIBUTION_MODES[mode],
    }


class Engine(NamedTuple):
    ffi: Any
    library: Any


@cache
def _engine() -> Engine:
    """Loads the engine, once per process; it is not fork-safe."""
    ffi: Any = FFI()
    ffi.cdef(C_INTERFACE)
    path = _engine_folder() / "prebuilt" / "libenv.so"
    flags = ffi.RTLD_NOW | ffi.RTLD_LOCAL
    if sys.platform == "linux":
        flags |= ffi.RTLD_DEEPBIND  # the engine bundles its own Qt
    try:
        library = ffi.dlopen(str(path), flags)
    except OSError as error:
        raise UserError(f"Procgen's engine {path} cannot be loaded: {error}", EXIT_RUN_FAILED) from None
    if library.libenv_version() != 1:
        raise UserError(
            f"Procgen's engine {path} has libenv version {library.libenv_version()}, not 1: "
            "pip install procgen-mirror==0.10.7",
            EXIT_RUN_FAILED,
        )
    return Engine(ffi, library)


def _engine_folder() -> Path:
    package = importlib.util.find_spec("procgen")  # finds the files without importing the package and its gym
    if package is None or not package.submodule_search_locations:
        raise UserError(
            "Procgen's engine is not installed: pip install procgen-mirror==0.10.7 (Linux x86-64, Python 3.11 or 3.12)",
            EXIT_RUN_FAILED,
        )
    return Path(package.submodule_search_locations[0]) / "data"
