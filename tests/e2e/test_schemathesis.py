"""What schemathesis makes of ``/openapi.json``, against the whole server with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from corefw.testing.server_process import serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.server.schemathesis_run import check_server

pytestmark = pytest.mark.slow

KEY = "open-sesame"
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
# A request may ask for as many tokens as fit, and the answers' form shows in a few.
_SMALL = ("--dtype", "float32", "--kv-cache-memory", "16MiB", "--max-model-len", "40", "--max-n", "4")


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "plain.jinja").write_text(_TEMPLATE)
    model = write_tiny_llama(tmp_path / "model")
    return (str(model), *_SMALL, "--chat-template", str(tmp_path / "plain.jinja"))


def test_every_answer_is_one_that_the_document_has(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with serving(*flags) as running:
        num_cases = check_server(running.url, tmp_path, "--workers", "2", max_examples=10, limit_s=170)
        running.wait_idle()
        assert running.metric("corefw:requests_total") > 100
        assert "Traceback" not in running.log
    assert num_cases > 1000


def test_with_a_key_too(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with serving(*flags, "--api-key", KEY) as running:
        header = f"Authorization: Bearer {KEY}"
        num_cases = check_server(
            running.url, tmp_path, "--header", header, "--phases", "examples,fuzzing", max_examples=20, limit_s=170
        )
        assert "Traceback" not in running.log
    assert num_cases > 50
