"""One float32 demo server for the tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from corefw.testing.server_process import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("--dtype", "float32", "--kv-cache-memory", "512MiB", "--served-model-name", "demo") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made
