"""The build: without a compiler, one namespace per instruction set, and under the sanitizers."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcluster.networks.kernels.build import SOURCE_FLAGS, SOURCES, BuildError, NoCompilerError, build
from rlcluster.networks.kernels.library import INSTRUCTION_SETS

VECTOR_HEADERS = [path for path in SOURCES.glob("*.hpp") if "namespace rl::RL_TARGET" in path.read_text()]
PORTABLE = "-DRL_TARGET=portable", '-DRL_VECTOR="vector_portable.hpp"'
needs_gcc = pytest.mark.skipif(
    platform.machine() != "x86_64" or not (shutil.which("g++") and shutil.which("nm")), reason="needs g++ on x86"
)

EVERYTHING = """
import sys
from pathlib import Path
import torch
from rlcluster.networks.kernels.library import Trunk, load
library = Path(sys.argv[1])
cases = [("impala", *case) for case in ((64, 64, 1, 1), (64, 64, 9, 3), (32, 96, 5, 2), (256, 32, 4, 2))]
for instruction_set in load(library).supported():
    for network, height, width, count, num_threads in (*cases, ("nature", 64, 64, 1, 1), ("nature", 64, 64, 9, 3)):
        torch.set_num_threads(num_threads)
        trunk = Trunk(network, height, width, instruction_set, library)
        weights = [torch.randn(s).contiguous(memory_format=torch.channels_last) for s in trunk.weight_shapes]
        biases = [torch.randn(s[0]) for s in trunk.weight_shapes]
        images = torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8)
        trunk.forward(images, weights, biases)
        saved = trunk.take_memory(count)
        features = trunk.forward(images, weights, biases, saved)
        gradients = trunk.backward((images, features, saved), torch.randn_like(features), weights, biases)
        assert all(bool(part.isfinite().all()) for group in gradients for part in group)
    print("checked", instruction_set)
"""


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompilerError, match="no C\\+\\+ compiler \\(no-such-compiler\\)"):
        build(tmp_path / "libkernels.so")
    assert not list(tmp_path.iterdir())


def test_a_compilers_errors_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "c++ -no-such-flag")
    with pytest.raises(BuildError, match="no-such-flag"):
        build(tmp_path / "libkernels.so")
    assert not list(tmp_path.iterdir())


def compile_with_gcc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    english = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(["g++", "-std=c++17", *arguments], env=english, capture_output=True, text=True, check=False)


@needs_gcc
@pytest.mark.parametrize("header", VECTOR_HEADERS, ids=lambda path: path.name)
def test_vector_code_compiles_for_a_chosen_instruction_set_alone(header: Path) -> None:
    check = "-fsyntax-only", "-x", "c++", header
    result = compile_with_gcc(*PORTABLE, *check)
    assert result.returncode == 0, result.stderr  # whatever was included before
    assert "vector code needs an instruction set" in compile_with_gcc(*check).stderr


@needs_gcc
def test_the_vectors_of_another_instruction_set_do_not_compile() -> None:
    result = compile_with_gcc(
        "-DRL_TARGET=avx2", PORTABLE[1], "-fsyntax-only", "-x", "c++", SOURCES / "target_kernels.hpp"
    )
    assert "error: 'Vector'" in result.stderr


@needs_gcc
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_an_instruction_set_shares_no_symbol_with_another(instruction_set: str, tmp_path: Path) -> None:
    """Without optimisation, so that an inline function with external linkage is in the symbol table."""
    source, output = SOURCES / f"kernels_{instruction_set}.cpp", tmp_path / "kernels.o"
    result = compile_with_gcc("-O0", *SOURCE_FLAGS.get(source.stem, ()), "-c", source, "-o", output)
    assert result.returncode == 0, result.stderr
    names = subprocess.run(["nm", "-C", "-g", "--defined-only", output], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in names.stdout.splitlines()] == [f"rl::{instruction_set}::kernels"]


@needs_gcc
def test_nature_includes_nothing_of_impala() -> None:
    for name in ("nature.cpp", "nature.hpp", "nature_passes.hpp"):
        result = compile_with_gcc(*PORTABLE, "-MM", "-x", "c++", SOURCES / name)
        assert "nature" in result.stdout
        assert "impala" not in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ and its sanitizers")
def test_no_access_out_of_bounds_and_no_undefined_behaviour(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan around every pass, with images and records that end where their memory ends."""
    library = tmp_path / "libkernels.so"
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    build(library, flags)
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    variables = {"LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    result = subprocess.run(
        [sys.executable, "-c", EVERYTHING, str(library)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "checked portable" in result.stdout
