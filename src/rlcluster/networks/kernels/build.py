"""Compiles native/ to one shared library with the kernels for all instruction sets of this kind of processor.

The instruction set is chosen when the library is loaded, so the build does not depend on the machine that compiles.
Imports only the standard library: setup.py runs this before anything is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "native"
LIBRARY = FOLDER / "libkernels.so"

# No predictive commoning: it keeps scalars of the first layer in registers, and spills the sums instead.
COMMON_FLAGS = ("-std=c++17", "-O3", "-fno-predictive-commoning", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
AVX512_FLAGS = ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mprefer-vector-width=512")
GCC_FALSE_POSITIVES = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")  # in GCC's own header of AVX-512
SOURCE_FLAGS = {"kernels_avx2": ("-mavx2", "-mfma"), "kernels_avx512": (*AVX512_FLAGS, *GCC_FALSE_POSITIVES)}


class BuildError(Exception):
    """The compiler failed; the message is its command and its output."""


class NoCompilerError(BuildError):
    """There is no C++ compiler: the kernels are left out."""


def build(output: Path = LIBRARY, extra_flags: Sequence[str] = ()) -> None:
    """Replaces `output`, atomically, by the new library."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(folder, f"{source.stem}.o") for source in sources]
        commands = [
            [*compiler, *COMMON_FLAGS, *_flags_of(source), *extra_flags, "-c", str(source), "-o", str(target)]
            for source, target in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(_run, commands))
        library = Path(folder, output.name)
        _run([*compiler, *extra_flags, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = output.with_name(f".{output.name}.{os.getpid()}")  # in the same folder: only then is rename atomic
        shutil.copyfile(library, temporary)
        temporary.replace(output)


def _compiler() -> list[str]:
    """The C++ compiler in $CXX, or the first that exists of the usual ones."""
    chosen = os.environ.get("CXX", "").split()
    candidates = [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    raise NoCompilerError(f"no C++ compiler ({', '.join(command[0] for command in candidates)})")


def _flags_of(source: Path) -> tuple[str, ...]:
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return SOURCE_FLAGS.get(source.stem, ()) if is_x86 else ()


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{' '.join(command)}\n{result.stderr}")
