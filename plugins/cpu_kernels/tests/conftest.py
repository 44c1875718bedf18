"""Without the library there is nothing to try but that the pack says so. With it, work is divided among threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from corefw_cpu_kernels import library

# Kernels keep the number of threads that torch has when they are loaded, which is one in a worker beside others.
_threads = torch.get_num_threads()
torch.set_num_threads(max(2, len(os.sched_getaffinity(0))))
collect_ignore_glob = [] if library.unavailable() is None else ["test_[!u]*.py"]
torch.set_num_threads(_threads)


@pytest.fixture(params=library.LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every level that this processor has, in use for the test."""
    name: str = request.param
    best = library.best_level()
    assert best is not None
    # A level that the processor lacks stands in for by the best: the test is then a repetition.
    library.use_level(name if library.LEVELS.index(name) <= library.LEVELS.index(best) else best)
    yield name
    library.use_level(None)
