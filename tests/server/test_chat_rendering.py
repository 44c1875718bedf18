"""Chats are rendered beside the event loop, whatever the template does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.errors import RequestError
from corefw.frontend.renderer import Renderer
from corefw.server.chat_rendering import render_chat
from tests.frontend.vocabularies import model_info, write_gguf

_ENDLESS = (
    "{% for message in messages %}{% if message.content == 'stop' %}{% for i in range(100000) %}"
    "{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}{{ message.content }}{% endfor %}"
)


def _chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def _renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    monkeypatch.setenv("COREFW_CACHE_DIR", str(tmp_path))
    info = model_info(write_gguf(tmp_path / "small.gguf"))
    return Renderer(info, ModelConfig(chat_template=_ENDLESS), FrontendConfig())


async def test_the_loop_runs_while_a_template_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = _renderer(tmp_path, monkeypatch)
    endless = asyncio.create_task(render_chat(renderer, _chat("stop")))
    longest_s, num_turns = 0.0, 0
    while not endless.done():
        begin = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s, num_turns = max(longest_s, time.monotonic() - begin), num_turns + 1
    with pytest.raises(RequestError, match="takes too long"):
        await endless
    assert num_turns > 20
    assert longest_s < 1
    assert await render_chat(renderer, _chat("well")) == renderer.render_text("well", param="prompt")


async def test_many_that_do_not_end_cost_a_neighbour_a_moment_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = _renderer(tmp_path, monkeypatch)
    endless = [asyncio.create_task(render_chat(renderer, _chat("stop"))) for _ in range(8)]
    await asyncio.sleep(0.05)
    assert await render_chat(renderer, _chat("well"))
    assert sum(task.done() for task in endless) <= 1, "it doesn't wait for their ends"
    for task in endless:
        task.cancel()
    await asyncio.gather(*endless, return_exceptions=True)
    begin = time.monotonic()
    with pytest.raises(RequestError, match="takes too long"):
        await render_chat(renderer, _chat("stop"))
    assert time.monotonic() - begin < 14, "those whose clients have gone are not rendered"
