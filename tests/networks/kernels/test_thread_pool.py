"""The kernels' pool of threads, under ThreadSanitizer: every work item once, and none after the call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rlcluster.networks.kernels.build import SOURCES

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
