from __future__ import annotations

from pathlib import Path

import pytest

from corefw.plugin_system.manager import PluginManager


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    return PluginManager.discover("")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")
