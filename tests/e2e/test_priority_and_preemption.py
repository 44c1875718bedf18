"""What clients see of priorities and preemptions: streams that are whole, and the words they would have got alone."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama
from tests.sample_plugins.install import install_sample

PROMPT_TOKENS, OUTPUT_TOKENS = 24, 60
LOW, HIGH = 5, -5
FLAGS = (
    "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "96", "--block-size", "8",
    "--scheduling-policy", "priority", "--logits-processors", "every_fifth",
)  # fmt: skip
# 11 blocks a request in the end: there is room for one and a half.
SMALL = (*FLAGS, "--num-gpu-blocks-override", "18")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "logprobs": {"temperature": 0, "logprobs": 3},
    "seed": {"temperature": 1.0, "seed": 7, "top_p": 0.9},
    "penalties": {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    "repetition": {"temperature": 0.8, "seed": 3, "extra_body": {"repetition_penalty": 1.3}},
    "bias": {"temperature": 0, "logit_bias": {"70": 5, "71": -100}},
    "processor": {"temperature": 0, "extra_body": {"vllm_xargs": {"every_fifth": 77}}},
    "processor and logprobs": {
        "temperature": 1.0, "seed": 5, "logprobs": 2, "extra_body": {"vllm_xargs": {"every_fifth": 66}},
    },
}  # fmt: skip


def _start(folder: Path, *flags: str) -> Iterator[Server]:
    install_sample("logits", folder / "site")
    model = write_tiny_llama(folder / "model")
    with serving(str(model), *flags, env={"PYTHONPATH": str(folder / "site")}) as running:
        yield running


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _start(tmp_path_factory.mktemp("roomy"), *FLAGS)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _start(tmp_path_factory.mktemp("small"), *SMALL)


class Heard:
    """One stream, as its client got it.

    Attributes:
        token_ids: in order of arrival.
        logprobs: of each token, where asked for.
        times_s: when each piece came.
        usage: of the last chunk.
    """

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[tuple[str, float, dict[str, float]]] = []
        self.reasons: list[str] = []
        self.times_s: list[float] = []
        self.usage: Any = None

    def add(self, chunk: Any) -> None:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self.text += choice.text
            self.token_ids += choice.token_ids or []
            self.times_s.append(time.monotonic())
            if choice.logprobs is not None:
                parts = (choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs)
                self.logprobs += list(zip(*parts, strict=True))
            if choice.finish_reason is not None:
                self.reasons.append(choice.finish_reason)

    @property
    def content(self) -> tuple[object, ...]:
        return self.text, self.token_ids, self.logprobs, self.reasons


def _prompt(index: int) -> list[int]:
    return [(11 * index + 7 * position) % 250 for position in range(PROMPT_TOKENS)]


async def _stream(client: openai.AsyncOpenAI, index: int, priority: int, kind: str, heard: Heard) -> Heard:
    settings = {**KINDS[kind]}
    extra = {"ignore_eos": True, "return_token_ids": True, "priority": priority, **settings.pop("extra_body", {})}
    chunks = await client.completions.create(
        model="tiny", prompt=_prompt(index), max_tokens=OUTPUT_TOKENS, stream=True,
        stream_options={"include_usage": True}, extra_body=extra, **settings,
    )  # fmt: skip
    async for chunk in chunks:
        heard.add(chunk)
    return heard


def _client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def _alone(server: Server, wanted: list[tuple[int, int, str]]) -> list[Heard]:
    """Each stream after the one before."""

    async def all_of_them() -> list[Heard]:
        async with _client(server) as client:
            return [await _stream(client, *one, Heard()) for one in wanted]

    return asyncio.run(all_of_them())


def _together(server: Server, wanted: list[tuple[int, int, str]], late: list[tuple[int, int, str]]) -> list[Heard]:
    """Streams at once; ``late`` ones start when some of the others have begun to speak."""

    async def all_of_them() -> list[Heard]:
        async with _client(server) as client, asyncio.TaskGroup() as group:
            first = [Heard() for _ in wanted]
            tasks = [group.create_task(_stream(client, *one, heard)) for one, heard in zip(wanted, first, strict=True)]
            while late and not any(heard.times_s for heard in first):  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.005)
            tasks += [group.create_task(_stream(client, *one, Heard())) for one in late]
        return [task.result() for task in tasks]

    return asyncio.run(all_of_them())


def _check_whole(heard: Heard) -> None:
    assert len(heard.token_ids) == OUTPUT_TOKENS
    assert heard.reasons == ["length"]
    assert (heard.usage.prompt_tokens, heard.usage.completion_tokens) == (PROMPT_TOKENS, OUTPUT_TOKENS)


def _num_preemptions(server: Server) -> float:
    return server.metric("corefw:num_preemptions_total")


def _check_idle(server: Server, num_preemptions: int) -> None:
    server.wait_idle()
    assert _num_preemptions(server) >= num_preemptions
    assert "Traceback" not in server.log


def test_a_preempted_stream_has_neither_gap_nor_repeat_whatever_its_parameters(roomy: Server, small: Server) -> None:
    wanted = [(index, 0, kind) for index, kind in enumerate(KINDS)]
    expected, before = _alone(roomy, wanted), _num_preemptions(small)
    assert len({heard.text for heard in expected}) == len(KINDS)
    for heard, alone in zip(_together(small, wanted, []), expected, strict=True):
        _check_whole(heard)
        assert heard.content == alone.content
    _check_idle(small, before + 2)


def test_urgent_requests_end_first_and_their_victims_lose_nothing(roomy: Server, small: Server) -> None:
    names = list(KINDS)
    low = [(index, LOW, names[index % len(names)]) for index in range(15)]
    high = [(20 + index, HIGH, names[index % len(names)]) for index in range(5)]
    expected, before = _alone(roomy, low + high), _num_preemptions(small)
    for _ in range(2):
        found = _together(small, low, high)
        for heard, alone in zip(found, expected, strict=True):
            _check_whole(heard)
            assert heard.content == alone.content
        ends_low, ends_high = ([heard.times_s[-1] for heard in part] for part in (found[:15], found[15:]))
        # Some of the first ones may have ended before the urgent ones came.
        assert sum(end > max(ends_high) for end in ends_low) >= 8
        small.wait_idle()
    _check_idle(small, before + 2)


@pytest.mark.parametrize("count", [2, 8])
def test_streams_progress_side_by_side(roomy: Server, count: int) -> None:
    wanted = [(index, 0, "greedy") for index in range(count)]
    expected = _alone(roomy, wanted)
    found = _together(roomy, wanted, [])
    for heard, alone in zip(found, expected, strict=True):
        _check_whole(heard)
        assert heard.content == alone.content
    assert max(heard.times_s[0] for heard in found) < min(heard.times_s[-1] for heard in found)
    whole_s = max(heard.times_s[-1] for heard in found) - min(heard.times_s[0] for heard in found)
    all_times_s = sorted(time_s for heard in found for time_s in heard.times_s)
    stood_s = [_stood_still_s(gap, all_times_s) for heard in found for gap in pairwise(heard.times_s)]
    assert max(stood_s) < whole_s / 2, "one stream stood still while another spoke"


def _stood_still_s(gap: tuple[float, float], all_times_s: list[float]) -> float:
    """How long a stream was silent while others spoke: without the longest time in which nobody did."""
    spoken = all_times_s[bisect_left(all_times_s, gap[0]) : bisect_right(all_times_s, gap[1])]
    return gap[1] - gap[0] - max(after - before for before, after in pairwise(spoken))
