"""What all tests of this pack share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers.utils import logging


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def quiet_transformers() -> Iterator[None]:
    """No progress bars and reports between the results."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(level)
