"""Without a compiler there are no kernels, and nothing here to test."""

from __future__ import annotations

import pytest

from rlcluster.kernels.library import KernelsMissingError, load


@pytest.fixture(autouse=True)
def _kernels() -> None:
    try:
        load()
    except KernelsMissingError as error:
        pytest.skip(f"no kernels: {error}")
