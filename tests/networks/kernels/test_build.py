"""The build: without a compiler, and under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcluster.networks.kernels.build import BuildError, NoCompilerError, build

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
        pictures = torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8)
        trunk.forward(pictures, weights, biases)
        saved = trunk.take_memory(count)
        features = trunk.forward(pictures, weights, biases, saved)
        gradients = trunk.backward((pictures, features, saved), torch.randn_like(features), weights, biases)
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ and its sanitizers")
def test_no_access_out_of_bounds_and_no_undefined_behaviour(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan around every pass, with pictures and records that end where their memory ends."""
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
