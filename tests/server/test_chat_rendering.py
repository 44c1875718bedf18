"""Chats are rendered beside the event loop, whatever the template does."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.errors import RequestError
from corefw.frontend.renderer import Renderer, SlowChatError
from corefw.frontend.request_hooks import NO_HOOKS, RequestHooks
from corefw.interfaces.hooks.front_end import ChatDraft, ChatEditor
from corefw.plugin_system.contributions import Contribution
from corefw.server.chat_rendering import render_chat
from tests.frontend.vocabularies import model_info, write_gguf

_ENDLESS = (
    "{% for message in messages %}{% if message.content == 'stop' %}{% for i in range(100000) %}"
    "{% for j in range(100000) %}{% endfor %}{% endfor %}{% endif %}{{ message.content }}{% endfor %}"
)
# Too long for the quick lane, and short of the slow one's limit.
_SLOW = "{% for i in range(1000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}{{ messages[0].content }}"


def _chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def _renderer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str = _ENDLESS, hooks: RequestHooks = NO_HOOKS
) -> Renderer:
    monkeypatch.setenv("COREFW_CACHE_DIR", str(tmp_path))
    info = model_info(write_gguf(tmp_path / "small.gguf"))
    return Renderer(info, ModelConfig(chat_template=template), FrontendConfig(), hooks)


class _Counting(ChatEditor):
    """Writes into each chat how many it has edited."""

    def __init__(self) -> None:
        self.num_edits = 0

    def edit(self, chat: ChatDraft) -> ChatDraft:
        self.num_edits += 1
        message = {**chat.messages[0], "content": f"{chat.messages[0]['content']} edit {self.num_edits}"}
        return dataclasses.replace(chat, messages=[message])


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


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", _SLOW], ids=["quick", "slow"])
async def test_a_chat_is_edited_once_however_long_its_template_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    editor = _Counting()
    hooks = RequestHooks(editors=[Contribution("sample", "test", "hook", editor)])
    renderer = _renderer(tmp_path, monkeypatch, template, hooks)
    for number in (1, 2):
        ids = await render_chat(renderer, _chat("well"))
        assert ids == renderer.render_text(f"well edit {number}", param="prompt")
    assert editor.num_edits == 2


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
    assert time.monotonic() - begin < 24, "those whose clients have gone are not rendered"


def test_the_slow_chat_is_one_that_the_quick_lane_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = _renderer(tmp_path, monkeypatch, _SLOW)
    with pytest.raises(SlowChatError) as raised:
        renderer.render_chat(_chat("well"), lane="quick")
    assert raised.value.finish() == renderer.render_text("well", param="prompt")
