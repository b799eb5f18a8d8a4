"""Roofline: what each layer achieved, compared with what these cores can do, measured on them in the same minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlcluster.networks.kernels.library import KernelsMissingError, load
from rlcluster.networks.operations import LayerWork
from rlcluster.profiling.analysis import NETWORK_PHASES, ProcessProfile, Profile

PEAK_SECONDS = 0.2  # for each of the three
CACHE_BYTES, MEMORY_BYTES = 2**18, 2**26  # of each thread: within the second-level cache; beyond all caches


class Peaks(NamedTuple):
    """Of all threads of a process together, while the other processes of its run measure theirs."""

    flops: float
    cache_bandwidth: float  # bytes per second
    memory_bandwidth: float


def measure_peaks(num_threads: int) -> Peaks | None:
    """None without our library."""
    try:
        library = load()
        return Peaks(
            library.peak_flops(num_threads, PEAK_SECONDS),
            library.peak_bandwidth(num_threads, CACHE_BYTES, PEAK_SECONDS),
            library.peak_bandwidth(num_threads, MEMORY_BYTES, PEAK_SECONDS),
        )
    except KernelsMissingError:
        return None


class TorchPhase(NamedTuple):
    """Layers that torch computes, with their activations, in a phase of every forward pass."""

    phase: str
    layers: str
    is_convolution: bool
    per_pass: int  # how often a forward pass has this phase


TORCH_PHASES = (
    TorchPhase("torch convolutions", "convolutions by torch", True, 1),
    TorchPhase("linear", "linear layers", False, 2),  # the trunk's and the heads'
)


class LayerRate(NamedTuple):
    """A layer, or layers, and pass, over all processes. Rates are those of one thread."""

    name: str
    direction: str  # forward or backward
    seconds: float  # of all threads
    flops: float
    bandwidth: float


def layer_rates(profile: Profile, works: Sequence[LayerWork]) -> list[LayerRate]:
    """Of our convolutions, from the times that the kernels have counted; then of what torch computes."""
    rates = []
    convolutions = [work for work in works if work.is_convolution]
    samples = {direction: _samples(profile, direction) for direction in ("forward", "backward")}
    for index, work in enumerate(convolutions):
        for direction, flop, moved in (
            ("forward", work.forward_flop, work.forward_bytes),
            ("backward", work.backward_flop, work.backward_bytes),
        ):
            seconds = sum(one.layers[direction][index] for one in profile.processes if one.layers is not None)
            if seconds > 0:
                count = samples[direction]
                rates.append(LayerRate(work.name, direction, seconds, flop * count / seconds, moved * count / seconds))
    return rates + [rate for phase in TORCH_PHASES if (rate := _torch_rate(profile, works, phase)) is not None]


def _torch_rate(profile: Profile, works: Sequence[LayerWork], layers: TorchPhase) -> LayerRate | None:
    """None if nothing was recorded. All threads of a process count for the whole phase."""
    own = [work for work in works if work.is_convolution == layers.is_convolution]
    phases = [(one.threads, node) for one in profile.processes for node in one.nodes if node.name == layers.phase]
    seconds = sum(threads * node.seconds for threads, node in phases)
    samples = sum(node.amount for _, node in phases) / layers.per_pass
    if not own or seconds <= 0 or samples <= 0:
        return None
    flop, moved = sum(work.forward_flop for work in own), sum(work.forward_bytes for work in own)
    return LayerRate(layers.layers, "forward", seconds, flop * samples / seconds, moved * samples / seconds)


def network_flops(rank: ProcessProfile, works: Sequence[LayerWork]) -> float:
    """Operations per second that a rank achieves while it is in its network, convolutions counted as direct."""
    forward, backward = sum(work.forward_flop for work in works), sum(work.backward_flop for work in works)
    seconds = rank.seconds_in(*NETWORK_PHASES)
    done = forward * _forward_samples(rank) + backward * _backward_samples(rank)
    return done / seconds if seconds else 0.0


def _samples(profile: Profile, direction: str) -> float:
    """That went through our convolutions, in all processes."""
    is_backward = direction == "backward"
    return sum(
        node.amount
        for process in profile.processes
        for node in process.nodes
        if node.name == "convolutions" and ("backward" in node.path) == is_backward
    )


def _forward_samples(process: ProcessProfile) -> float:
    """Every forward pass ends in two linear phases at most: the trunk's and the heads'. The heads' are counted."""
    passes = [node for node in process.nodes if node.name == "linear"]
    return sum(node.amount for node in passes) / 2


def _backward_samples(process: ProcessProfile) -> float:
    """What was forwarded to be learnt, not for targets: each such pass has its backward pass."""
    inside = [
        node
        for node in process.nodes
        if node.name == "linear" and "forward" in node.path and "targets" not in node.path
    ]
    has_backward = any(node.name == "backward" for node in process.nodes)
    return sum(node.amount for node in inside) / 2 if has_backward else 0.0
