"""The kernels' threads, under ThreadSanitizer: each work item once, none after the call; whole passes."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from rlcluster.networks.kernels.build import SOURCES, build
from rlcluster.networks.kernels.library import WEIGHT_SHAPES

PROGRAM = r"""
#include <cstdio>
#include <memory>
#include "thread_pool.hpp"

int main() {
  for (int num_threads : {1, 2, 7}) {
    rl::ThreadPool pool(num_threads);
    for (int call = 0; call < 3000; call++) {
      const int num_items = call % 4;
      auto counts = std::make_unique<int[]>(4);  // gone after the call: a late thread would touch freed memory
      pool.run(num_items, [&](int item, int thread) {
        if (thread < 0 || thread >= num_threads) counts[3] += 100;
        counts[item]++;
      });
      for (int item = 0; item < 4; item++) {
        if (counts[item] != (item < num_items)) return 1;
      }
    }
  }
  std::puts("every item once");
}
"""

# Two threads share a trunk, as threads may share a policy; each calls passes that use several threads of the pool.
PASSES = r"""
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

struct rl_trunk;
extern "C" {
rl_trunk* rl_trunk_create(int, int, int, int);
void rl_trunk_destroy(rl_trunk*);
int64_t rl_trunk_num_features(const rl_trunk*);
int64_t rl_trunk_saved_bytes(const rl_trunk*);
int rl_trunk_forward(rl_trunk*, float* const*, float* const*, const uint8_t*, int64_t, float*, char*, int);
int rl_trunk_backward(rl_trunk*, float* const*, float* const*, const uint8_t*, int64_t, const float*, const float*,
                      char*, float* const*, float* const*, int);
}

struct Tensors {
  explicit Tensors(const std::vector<int>& sizes) {
    for (int size : sizes) values.emplace_back(size, 0.01f);
    for (auto& one : values) pointers.push_back(one.data());
  }
  std::vector<std::vector<float>> values;
  std::vector<float*> pointers;
};

void call_passes(rl_trunk* trunk, const std::vector<int>& weight_sizes, const std::vector<int>& bias_sizes) {
  constexpr int64_t n = 20;
  Tensors weights(weight_sizes), biases(bias_sizes), weight_gradients(weight_sizes), bias_gradients(bias_sizes);
  const std::vector<uint8_t> images(n * 64 * 64 * 3, 100);
  std::vector<float> features(n * rl_trunk_num_features(trunk)), gradient(features.size(), 1.0f);
  std::vector<char> memory(n * rl_trunk_saved_bytes(trunk) + 64);
  char* saved = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  for (int num_threads : {3, 2, 3}) {
    int code = rl_trunk_forward(trunk, weights.pointers.data(), biases.pointers.data(), images.data(), n,
                                features.data(), saved, num_threads);
    code += rl_trunk_backward(trunk, weights.pointers.data(), biases.pointers.data(), images.data(), n,
                              features.data(), gradient.data(), saved, weight_gradients.pointers.data(),
                              bias_gradients.pointers.data(), num_threads);
    std::puts(code == 0 ? "passed" : "failed");
  }
}

int main() {
  const std::vector<int> weight_sizes[] = {{IMPALA_WEIGHTS}, {NATURE_WEIGHTS}};
  const std::vector<int> bias_sizes[] = {{IMPALA_BIASES}, {NATURE_BIASES}};
  for (int kind = 0; kind < 2; kind++) {
    rl_trunk* trunk = rl_trunk_create(kind, 0, 64, 64);
    std::thread other([&] { call_passes(trunk, weight_sizes[kind], bias_sizes[kind]); });
    call_passes(trunk, weight_sizes[kind], bias_sizes[kind]);
    other.join();
    rl_trunk_destroy(trunk);
  }
}
"""


def compiled(folder: Path, text: str, *more: str | Path, check: bool) -> Path | None:
    """The program, under ThreadSanitizer; None if it cannot be compiled."""
    source, program = folder / "main.cpp", folder / "main"
    source.write_text(text, encoding="utf-8")
    flags = ("-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{SOURCES}")
    result = subprocess.run(["g++", *flags, source, *more, "-o", program], capture_output=not check, check=check)
    return program if result.returncode == 0 else None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_item_is_done_once_and_none_after_the_call(tmp_path: Path) -> None:
    if compiled(tmp_path, "int main() {}", check=False) is None:
        pytest.skip("needs g++'s ThreadSanitizer (libtsan)")
    program = compiled(tmp_path, PROGRAM, SOURCES / "thread_pool.cpp", check=True)
    assert program is not None
    result = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, "every item once"), result.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_passes_of_a_shared_trunk_on_several_threads_have_no_race(tmp_path: Path) -> None:
    if compiled(tmp_path, "int main() {}", check=False) is None:
        pytest.skip("needs g++'s ThreadSanitizer (libtsan)")
    library, text = tmp_path / "libkernels.so", PASSES
    build(library, ("-O1", "-g", "-fsanitize=thread"))
    for network, shapes in WEIGHT_SHAPES.items():
        text = text.replace(f"{network.upper()}_WEIGHTS", ", ".join(str(math.prod(shape)) for shape in shapes))
        text = text.replace(f"{network.upper()}_BIASES", ", ".join(str(shape[0]) for shape in shapes))
    program = compiled(tmp_path, text, library, f"-Wl,-rpath,{tmp_path}", check=True)
    assert program is not None
    result = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert (result.returncode, result.stdout.split()) == (0, ["passed"] * 12), result.stderr[-4000:]
