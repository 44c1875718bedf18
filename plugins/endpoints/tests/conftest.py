"""One server of the demo model with all of the pack's routes, behind a key."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from corefw.testing.server_process import Server, serving

KEY = "sesame"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    flags = ["--dtype", "float32", "--kv-cache-memory", "512MiB", "--served-model-name", "demo", "--api-key", KEY]
    with serving(*flags, "--plugins", "+tokenize, +detokenize, +tokenizer_info") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=120) as made:
        yield made
