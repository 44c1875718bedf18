"""Fixtures for modules that import them; not in the folder's conftest, which serves the file readers too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from corefw.host import Host


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: threads only wait for each other, above all where several suites share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def every_core() -> Iterator[None]:
    """Sums are divided among threads, as where a model is served, however few cores a worker of the suite was left."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(2, Host().usable_cpus()))
    yield
    torch.set_num_threads(before)
