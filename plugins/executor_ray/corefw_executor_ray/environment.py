"""What processes on other nodes find in their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["enter", "passed_on"]

# What was set for whoever asks means the same on other nodes, whose shells know nothing of it.
_PASSED_ON = ("COREFW_", "VLLM_", "HF_", "TRANSFORMERS_", "GOMP_")
_OWN = ("COREFW_CPUS",)  # means something on this machine alone
_THREADS = "OMP_NUM_THREADS"


def passed_on() -> dict[str, str | None]:
    """None for what the other process shall not have, though Ray gave it."""
    passed: dict[str, str | None] = {
        name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON) and name not in _OWN
    }
    return passed | {_THREADS: os.environ.get(_THREADS) or None}


def enter(environment: Mapping[str, str | None]) -> None:
    """Before torch loads. Ray itself has set OMP_NUM_THREADS, which says nothing about what the user wants."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
