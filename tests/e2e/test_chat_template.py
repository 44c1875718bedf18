"""A server with a template that some messages send into an endless loop."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx

from corefw.testing.server_process import serving
from corefw.testing.tiny_models import write_tiny_llama

_TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'long' %}{% for i in range(100000) %}{% for j in range(100000) %}"
    "{% endfor %}{% endfor %}{% elif m.content == 'large' %}{{ 'x' * (10 ** 9) }}{% endif %}{{ m.content }}{% endfor %}"
)


def test_others_are_served_while_a_template_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "loop.jinja").write_text(_TEMPLATE)
    model = str(write_tiny_llama(tmp_path / "model"))
    flags = ("--dtype", "float32", "--kv-cache-memory", "16MiB", "--chat-template", str(tmp_path / "loop.jinja"))
    with serving(model, *flags) as server, ThreadPoolExecutor(3) as clients, httpx.Client(timeout=60) as http:

        def ask(content: str) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, "ignore_eos": True}
            return http.post(f"{server.url}/v1/chat/completions", json=body)

        assert ask("well").status_code == 200
        slow = [clients.submit(ask, content) for content in ("long", "long", "large")]
        times_s = [time.monotonic()]
        while not all(answer.done() for answer in slow):
            assert http.get(f"{server.url}/health").status_code == 200
            assert http.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
            times_s.append(time.monotonic())
            time.sleep(0.02)
        assert len(times_s) > 10
        # Whoever had to wait for a template would wait for half of the time that both of them take.
        assert max(after - before for before, after in pairwise(times_s)) < (times_s[-1] - times_s[0]) / 3
        for answer, said in zip(slow, ("takes too long", "takes too long", "too much memory"), strict=True):
            assert answer.result().status_code == 400
            error = answer.result().json()["error"]
            assert said in error["message"]
            assert error["param"] == "messages"
        assert ask("well").status_code == 200
