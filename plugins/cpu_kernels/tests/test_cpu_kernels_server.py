"""A server with the pack answers in bfloat16, by its kernels."""

from __future__ import annotations

from pathlib import Path

import httpx

from corefw.testing.server_process import serving
from corefw.testing.tiny_models import write_tiny_llama


def test_a_server_answers_in_bfloat16_by_these_kernels(tmp_path: Path) -> None:
    model = str(write_tiny_llama(tmp_path / "tiny"))
    flags = ("--dtype", "bfloat16", "--num-gpu-blocks-override", "64")
    with serving(model, *flags, env={"OMP_NUM_THREADS": "2"}) as server:
        body = {"model": model, "prompt": "abc", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
        answers = [httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json() for _ in range(2)]
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [8, 8]
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
        maps = [Path(f"/proc/{pid}/maps").read_text(encoding="utf-8") for pid in server.children()]
        assert any("libcorefw_cpu_kernels.so" in text for text in maps)
