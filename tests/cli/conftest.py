"""A tiny model, and a server for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("cli-tiny"))


@pytest.fixture(scope="session")
def tiny_server(tiny: Path) -> Iterator[Server]:
    with serving(
        str(tiny), "--dtype", "float32", "--kv-cache-memory", "16MiB", "--served-model-name", "tiny"
    ) as server:
        yield server
