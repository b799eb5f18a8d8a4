"""`rlcluster check`: is the installation complete, how fast is the machine? Each line is ok or says how to fix it."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rlcluster import environments
from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.environments.procgen import SPEC
from rlcluster.networks.kernels.library import KernelsMissingError, load
from rlcluster.networks.policy import Policy, make_policy
from rlcluster.settings.schema import EnvSettings, KernelsName, PolicySettings
from rlcluster.system import cores, machine
from rlcluster.system.console import counted, say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.torch_build import cuda_note, installed_bytes

MEASURE_SECONDS = 1.0
MIN_MEMORY_GB = 2.0
KERNELS_COMPARED: tuple[KernelsName, KernelsName] = ("auto", "torch")


class CheckFailedError(Exception):
    """What is wrong, and how to fix it."""


def check_command(output_dir: Path) -> int:
    """Prints one line per check; returns 0 if all pass."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", _python),
        ("PyTorch", _torch),
        ("Cores", _cores),
        ("Memory", _memory),
        ("Procgen engine", _procgen),
        ("Policy", _policy),
        ("Kernels", _kernels),
        ("Write access", lambda: _write_access(output_dir)),
    ]
    failures = 0
    for name, check in checks:
        try:
            say(f"ok     {name}: {check()}")
        except (CheckFailedError, UserError) as error:
            failures += 1
            say(f"FAILED {name}: {error}")
    say("All checks passed." if not failures else f"{failures} of {len(checks)} checks failed.")
    return EXIT_RUN_FAILED if failures else 0


def samples_per_second(step: Callable[[], object], samples: int, seconds: float = MEASURE_SECONDS) -> float:
    """Calls `step` once to warm up, then for `seconds`; one call processes `samples` samples."""
    step()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        calls += 1
    return calls * samples / (time.perf_counter() - start)


def forward_pass(policy: Policy, observations: torch.Tensor) -> Callable[[], object]:
    """A call that does the forward pass of a rollout."""

    def step() -> object:
        with torch.inference_mode():
            return policy(observations)

    return step


def training_pass(policy: Policy, observations: torch.Tensor) -> Callable[[], None]:
    """A call that does a forward and backward pass."""

    def step() -> None:
        output = policy(observations)
        (output.logits.sum() + output.values.sum()).backward()  # type: ignore[no-untyped-call]

    return step


def random_observations(spec: EnvironmentSpec, count: int) -> torch.Tensor:
    draws = np.random.default_rng(0)
    if spec.is_image:
        return torch.from_numpy(draws.integers(0, 256, (count, *spec.observation_shape), np.uint8))
    return torch.from_numpy(draws.standard_normal((count, *spec.observation_shape), np.float32))


def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        raise CheckFailedError(f"{platform.python_version()}; use Python 3.11 or 3.12")
    return platform.python_version()


def _torch() -> str:
    threads, interop = torch.get_num_threads(), torch.get_num_interop_threads()
    note = cuda_note(torch.__version__, torch.version.cuda, installed_bytes())
    return f"{torch.__version__}, {counted(threads, 'thread')} (inter-op {interop}){note}"


def _cores() -> str:
    allowed, threads = cores.allowed(), torch.get_num_threads()
    if threads > allowed:
        problem = f"{counted(threads, 'thread')} on {counted(allowed, 'core')}"
        raise CheckFailedError(f"{problem}; use --num-threads {allowed}")
    return f"{allowed} available to this process ({machine.cpu_model()})"


def _memory() -> str:
    available = machine.memory_available_gb()
    if available < MIN_MEMORY_GB:
        raise CheckFailedError(f"{available:.1f} GB available; training needs at least {MIN_MEMORY_GB:.0f} GB")
    return f"{available:.1f} GB available"


def _procgen() -> str:
    num_envs = 16
    vector = environments.make(EnvSettings(name="coinrun"), range(num_envs), num_threads=torch.get_num_threads())
    actions = np.random.default_rng(0).integers(0, SPEC.num_actions, num_envs)
    try:
        rate = samples_per_second(lambda: vector.step(actions), num_envs)
    finally:
        vector.close()
    return f"coinrun at {rate:,.0f} steps/s in this process"


def _policy() -> str:
    policy = make_policy(PolicySettings(network="impala"), SPEC, seed=0)
    forward, both = rate(policy, forward_pass), rate(policy, training_pass)
    return f"impala network ({policy.kernels}), forward {forward:,.0f} samples/s, forward and backward {both:,.0f}"


def _kernels() -> str:
    """The speed of our convolutions versus PyTorch's. Missing kernels only cost speed, so they are not a failure."""
    ours, torchs = (make_policy(PolicySettings(network="impala"), SPEC, 0, name) for name in KERNELS_COMPARED)
    try:
        load()
    except KernelsMissingError as error:
        return f"none; PyTorch's convolutions are used, which take two to three times as long: {error}"
    ratio = rate(ours, training_pass) / rate(torchs, training_pass)
    return f"{ours.kernels}, training {ratio:.1f} times as fast as with PyTorch's convolutions"


def rate(policy: Policy, make_pass: Callable[[Policy, torch.Tensor], Callable[[], object]]) -> float:
    """Samples per second of passes over one chunk."""
    observations = random_observations(SPEC, policy.chunk_size)
    return samples_per_second(make_pass(policy, observations), len(observations))


def _write_access(output_dir: Path) -> str:
    folder = next(folder for folder in (output_dir.resolve(), *output_dir.resolve().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        raise CheckFailedError(f"{output_dir}: {error.strerror}; choose another --output-dir") from None
    return str(output_dir.resolve())
