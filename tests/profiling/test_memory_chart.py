"""The memory of each process over time, and their sum."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_findings import process

from rlcluster.profiling.analysis import analyse
from rlcluster.profiling.charts import LEFT, NUM_COLORS, memory_chart


def chart(gigabytes: list[list[float]]) -> str:
    """Of ranks with these samples, at 0, 50 and 100 s."""
    ranks: list[dict[str, Any]] = [
        process(rank, {}, memory=[[50.0 * k, value, 0.0] for k, value in enumerate(row)])
        for rank, row in enumerate(gigabytes)
    ]
    return memory_chart(analyse(ranks))


def legend(svg: str) -> list[str]:
    return re.findall(r'<span class="key[^"]*"></span> ([^<]*)</span>', svg)


def heights(svg: str, kind: str) -> list[float]:
    """Above the axis, of the line's points."""
    found = re.search(rf'<polyline class="line {kind}" points="([^"]*)"', svg)
    assert found is not None
    return [226 - float(point.split(",")[1]) for point in found[1].split()]


def test_each_process_has_a_line_and_all_have_their_sum() -> None:
    svg = chart([[0.5, 0.5, 1.0], [1.0, 1.0, 1.0]])
    assert legend(svg) == ["rank 0", "rank 1", "all processes", "/dev/shm of rank 0's host"]
    first, second, total = (heights(svg, kind) for kind in ("p0", "p1", "total"))
    assert second[0] == pytest.approx(2 * first[0], abs=0.2)
    assert total == pytest.approx([a + b for a, b in zip(first, second, strict=True)], abs=0.2)


def test_a_single_process_is_its_sum() -> None:
    assert legend(chart([[0.5, 0.6, 0.7]])) == ["rank 0", "/dev/shm of rank 0's host"]


def test_the_largest_have_the_colours_and_the_rest_are_summed_as_others() -> None:
    sizes = [1.0, *([2.0] * (NUM_COLORS - 1)), 1.5, 1.5]  # rank 0 and the last one are left over
    svg = chart([[size] * 3 for size in sizes])
    assert legend(svg)[: NUM_COLORS + 1] == [*(f"rank {k}" for k in range(1, NUM_COLORS + 1)), "2 others"]
    # 1 and 1.5 GB
    assert heights(svg, "others")[0] == pytest.approx(1.25 * heights(svg, "p0")[0], abs=0.2)


def test_a_sample_from_just_before_the_first_update_is_drawn_at_its_begin() -> None:
    ranks = [process(0, {}, memory=[[-0.5, 0.5, 0.0], [50.0, 0.6, 0.0]])]
    found = re.search(r'class="line total" points="([0-9.]+),', memory_chart(analyse(ranks)))
    assert found is not None
    assert float(found[1]) == LEFT
