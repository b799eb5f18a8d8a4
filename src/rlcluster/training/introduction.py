"""What ranks tell each other once they have joined, before anything is decided: host, cores, code and settings. Ranks
that would not compute the same thing are found here, on all ranks, with their host. The kernels follow once the
network is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

import rlcluster
from rlcluster.exchange.ranks import Ranks
from rlcluster.networks.kernels.build import LIBRARY
from rlcluster.plan import Peers, peers_of
from rlcluster.settings.resume import resume_differences
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.console import warn
from rlcluster.system.cores import Cores, number_ranges
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement
from rlcluster.training.planning import cores_from

PACKAGE = Path(rlcluster.__file__).parent
SOURCES = ("*.py", "*.hpp", "*.cpp")


class Agreed(NamedTuple):
    """What follows from all introductions."""

    settings: Settings  # rank 0's apply everywhere
    peers: Peers
    num_nodes: int  # machines that have ranks: launchers may start more on one than on another


class _Introduction(NamedTuple):
    placement: Placement
    cores: Cores
    code: str
    settings: str  # JSON
    is_resumed: bool


def introduce(settings: Settings, resume: bool, ranks: Ranks) -> Agreed:
    """Called once by every rank. Raises the same UserError on all ranks if their code or their settings differ."""
    own = _Introduction(ranks.placement, cores.observe(), code_version(), settings.model_dump_json(), resume)
    everyone = [_read(part) for part in ranks.gather_bytes([json.dumps(own).encode()])]
    first = everyone[0]
    for other in everyone[1:]:
        _refuse_other_code(first, other)
    chosen = Settings.model_validate_json(first.settings)
    if not first.is_resumed:  # else rank 0 alone has read the run
        for other in everyone[1:]:
            _refuse_other_settings(chosen, other)
    peers = peers_of([(one.placement, one.cores) for one in everyone])
    nodes = {(one.placement.node, one.placement.host) for one in everyone}
    return Agreed(chosen, peers[ranks.rank], len(nodes))


def _read(part: bytes) -> _Introduction:
    placement, observed, *rest = json.loads(part)
    return _Introduction(Placement(*placement), cores_from(observed), *rest)


def code_version(folder: Path = PACKAGE) -> str:
    """Version, hash of the package's source, and torch: ranks with the same compute the same."""
    sources = sorted(file for kind in SOURCES for file in folder.rglob(kind))
    digest = _digest(part for file in sources for part in (str(file.relative_to(folder)).encode(), file.read_bytes()))
    return f"rlcluster {rlcluster.__version__} ({digest}), torch {torch.__version__}"


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class Convolutions(NamedTuple):
    """What computes a rank's convolutions."""

    kernels: str  # the instruction set of ours, or torch
    library: str  # hash of the compiled file; empty with torch

    @classmethod
    def of(cls, kernels: str) -> Convolutions:
        return cls(kernels, "" if kernels == "torch" else _digest([LIBRARY.read_bytes()]))


class _Convolver(NamedTuple):
    placement: Placement
    convolutions: Convolutions

    def __str__(self) -> str:
        return f"{_name(self.placement)} has kernels={self.convolutions.kernels}"


def compare_convolutions(own: Convolutions, ranks: Ranks) -> None:
    """Called once by every rank. Raises the same UserError on all ranks if they have not the same library. Processors
    may differ in their instruction sets: rank 0 warns of that.
    """
    parts = [json.loads(part) for part in ranks.gather_bytes([json.dumps((ranks.placement, own)).encode()])]
    first, *others = [_Convolver(Placement(*placement), Convolutions(*one)) for placement, one in parts]
    for other in others:
        _refuse_other_library(first, other)
    unlike = [other for other in others if other.convolutions != first.convolutions]
    if unlike and ranks.rank == 0:
        warn(
            f"{unlike[0]}, but {first}: their results differ by rounding, so the run is repeatable to the bit only on "
            "the same machines in the same order"
        )


def _refuse_other_library(first: _Convolver, other: _Convolver) -> None:
    library, others = first.convolutions.library, other.convolutions.library
    if bool(library) != bool(others):
        raise UserError(
            f"{other}, but {first}; compile the kernels on all machines (make clean setup), or use --kernels torch"
        )
    if library != others:
        raise UserError(
            f"{_name(other.placement)} has another libkernels.so ({others}) than {_name(first.placement)} ({library}): "
            "other sources or another compiler; install the same file on all machines, or use --kernels torch"
        )


def _refuse_other_code(first: _Introduction, other: _Introduction) -> None:
    if first.code != other.code:
        raise UserError(
            f"{_name(other.placement)} runs {other.code}, but {_name(first.placement)} runs {first.code}; install the "
            "same version on all machines"
        )


def _refuse_other_settings(first: Settings, other: _Introduction) -> None:
    differences = [
        line
        for line in resume_differences(first, Settings.model_validate_json(other.settings))
        if not line.startswith("output.")  # only rank 0 writes
    ]
    if differences:
        told = "; ".join(differences).replace("but the run has", "but rank 0 has")
        raise UserError(f"{_name(other.placement)} was started with other settings: {told}; use one command for all")


def _name(placement: Placement) -> str:
    return f"rank {placement.rank}" + (f" on {placement.host}" if placement.host else "")


def cores_line(placement: Placement, observed: Cores, used: tuple[int, ...]) -> str:
    """`rank 3 on n2: cores 8-15`, with advice where the cores are unfavourable."""
    numbers = used or observed.numbers
    if not used and observed.allowed < len(numbers):  # the system chooses them, so no advice fits
        return f"{_name(placement)}: at most {observed.allowed} of cores {number_ranges(numbers)}"
    chosen = [core for core in observed.affinity if core.number in numbers]
    advice = ""
    if len({core.socket for core in chosen}) > 1:
        advice = "; they span sockets, whose memory is apart: more ranks per host with fewer cores are faster"
    elif len({core.first_sibling for core in chosen}) < len(chosen):
        advice = "; some are hyper-threads of one core: ask the scheduler for whole cores (Slurm: --hint=nomultithread)"
    return f"{_name(placement)}: cores {number_ranges(numbers) or 'unknown'}{advice}"
