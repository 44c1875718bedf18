"""The demo model through the real OpenAI client."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from corefw.testing.server_process import Server, serving
from corefw.testing.tiny_models import write_tiny_llama

pytestmark = pytest.mark.model
STORY = "Once upon a time, in a village by the sea,"


def complete(client: openai.OpenAI, prompt: Any = STORY, **settings: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **{"temperature": 0, "max_tokens": 24, **settings})


def stream_text(client: openai.OpenAI, prompt: Any = STORY, **settings: Any) -> tuple[str, str | None]:
    text, reason = "", None
    for chunk in complete(client, prompt, stream=True, **settings):
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, reason


def test_a_chat_gets_a_sensible_answer(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    answer = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=32)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client: openai.OpenAI) -> None:
    settings = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_usage_is_streamed_only_when_asked_for(client: openai.OpenAI, kind: str, options: Any) -> None:
    extra = {} if options is None else {"stream_options": options}
    if kind == "chat":
        messages = [{"role": "user", "content": "Hi"}]
        stream = client.chat.completions.create(model="demo", messages=messages, max_tokens=5, stream=True, **extra)
    else:
        stream = client.completions.create(model="demo", prompt="Hi", max_tokens=5, stream=True, **extra)
    chunks = list(stream)
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    if options and options["include_usage"]:
        assert with_usage == chunks[-1:]
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 5
    else:
        assert with_usage == []
        assert all(chunk.choices for chunk in chunks)


def test_streamed_choices_carry_their_index_and_equal_the_whole(client: openai.OpenAI) -> None:
    settings = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me a joke."}],
        "n": 3,
        "seed": 5,
        "max_tokens": 24,
    }
    whole = client.chat.completions.create(**settings)
    texts, roles, reasons = {}, {}, {}
    for chunk in client.chat.completions.create(**settings, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            roles.setdefault(choice.index, []).extend([choice.delta.role] if choice.delta.role else [])
            reasons.setdefault(choice.index, []).extend([choice.finish_reason] if choice.finish_reason else [])
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert set(texts) == {0, 1, 2}
    assert len(set(texts.values())) == 3
    assert all(role == ["assistant"] for role in roles.values())
    assert all(len(reason) == 1 for reason in reasons.values())


def test_a_seed_decides_the_text_alone_and_under_load(client: openai.OpenAI) -> None:
    def seeded(seed: int) -> str:
        return complete(client, temperature=1, seed=seed, max_tokens=16).choices[0].text

    alone = [seeded(seed) for seed in range(4)]
    with ThreadPoolExecutor(14) as pool:
        noise = [pool.submit(complete, client, f"Noise {i}", temperature=1, max_tokens=24) for i in range(4)]
        together = list(pool.map(seeded, range(4)))
        for job in noise:
            job.result()
    assert together == alone
    assert len(set(alone)) > 2


def test_stop_strings_cut_exactly_wherever_they_lie(client: openai.OpenAI) -> None:
    text = complete(client).choices[0].text
    draw = random.Random(7)
    starts = [draw.randrange(1, len(text) - 3) for _ in range(5)]
    stops = [text[start : start + draw.randrange(1, 9)] for start in starts]
    with ThreadPoolExecutor(10) as pool:
        wholes = list(pool.map(lambda stop: complete(client, stop=stop).choices[0], stops))
        streams = list(pool.map(lambda stop: stream_text(client, stop=stop), stops))
    for stop, whole, (streamed, reason) in zip(stops, wholes, streams, strict=True):
        assert whole.text == streamed == text[: text.find(stop)]
        assert whole.finish_reason == reason == "stop"


def test_a_stop_completed_by_the_last_allowed_token_counts(client: openai.OpenAI) -> None:
    text = complete(client, max_tokens=8).choices[0].text
    choice = complete(client, max_tokens=8, stop=text[-2:]).choices[0]
    assert choice.text == text[: text.find(text[-2:])]
    assert choice.finish_reason == "stop"


def test_logprobs_name_the_chosen_tokens(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Say hello with an emoji."}]
    answer = client.chat.completions.create(
        model="demo", messages=messages, temperature=0, max_tokens=24, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert raw.decode("utf-8", "replace").removesuffix("<|im_end|>") == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)


def test_several_prompts_and_token_ids_are_completed_in_order(client: openai.OpenAI) -> None:
    one = complete(client, "The capital of France is", max_tokens=8).choices[0].text
    many = complete(client, ["The capital of France is", STORY], max_tokens=8)
    assert [choice.index for choice in many.choices] == [0, 1]
    assert many.choices[0].text == one
    ids = complete(client, "The capital of France is", max_tokens=8, extra_body={"return_token_ids": True})
    prompt_ids = ids.choices[0].model_extra["prompt_token_ids"]
    assert complete(client, prompt_ids, max_tokens=8).choices[0].text == one
    assert complete(client, [prompt_ids, prompt_ids], max_tokens=8).choices[1].text == one


def test_ignore_eos_runs_to_the_limit_but_respects_stop_token_ids(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    settings = {"model": "demo", "messages": messages, "temperature": 0}
    long = client.chat.completions.create(**settings, max_tokens=40, extra_body={"ignore_eos": True})
    assert long.usage.completion_tokens == 40
    assert long.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(
        **settings, max_tokens=80, extra_body={"ignore_eos": True, "stop_token_ids": [2]}
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 80


def test_the_newer_token_limit_wins_and_none_means_up_to_the_context(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Count to one hundred."}]
    settings = {"model": "demo", "messages": messages, "temperature": 0}
    for limits in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 50, "max_completion_tokens": 5}):
        answer = client.chat.completions.create(**settings, **limits)
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")
    settings["messages"] = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    assert client.chat.completions.create(**settings).choices[0].finish_reason == "stop"


def _limit(server: Server) -> int:
    return httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_refused_at_once(client: openai.OpenAI, server: Server, stream: bool) -> None:
    limit = _limit(server)
    for prompt in ([50] * (limit + 1), [50] * limit, "word " * limit):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, prompt, max_tokens=1, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert str(limit) in caught.value.message
    with pytest.raises(openai.BadRequestError, match=str(limit)):
        complete(client, [50] * 8, max_tokens=limit - 3)
    assert complete(client, max_tokens=2).choices[0].text


def test_the_longest_prompt_that_fits_is_served(client: openai.OpenAI) -> None:
    with serving("--max-model-len", "128", "--kv-cache-memory", "64MiB", "--served-model-name", "demo") as short:
        body = {"model": "demo", "prompt": [50] * 127, "max_tokens": 1}
        answer = httpx.post(f"{short.url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": ""}),
        ("completions", {"prompt": [""]}),
        ("completions", {"prompt": []}),
        ("completions", {"prompt": [[]]}),
        ("completions", {"prompt": ["fine", ""]}),
        ("completions", {"prompt": [-1]}),
        ("completions", {"prompt": [49152]}),
        ("completions", {"prompt": [2**63]}),
        ("completions", {"prompt": [[1, 2], [3, 49152]]}),
        ("chat/completions", {"messages": []}),
    ],
)
def test_empty_and_foreign_prompts_are_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{server.url}/v1/{path}", json={"model": "demo", "max_tokens": 2, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(("prompt", "messages"))
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_an_empty_chat_message_is_answered(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": ""}]
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=2)
    assert answer.usage.completion_tokens >= 1


def test_ids_beyond_the_tokenizer_are_never_sampled(tmp_path: Path) -> None:
    # 259 ids have a token; the embedding has rows for 4096, so nearly every row is padding.
    write_tiny_llama(tmp_path, vocab_size=4096)
    with serving(str(tmp_path), "--served-model-name", "tiny", "--kv-cache-memory", "16MiB") as padded:
        body = {"model": "tiny", "prompt": "a", "temperature": 5, "seed": 1, "n": 16, "max_tokens": 125}
        body |= {"ignore_eos": True, "return_token_ids": True, "logprobs": 5}
        answer = httpx.post(f"{padded.url}/v1/completions", json=body, timeout=60).json()
    drawn = [token_id for choice in answer["choices"] for token_id in choice["token_ids"]]
    assert len(drawn) == 16 * 125
    assert max(drawn) < 259
    assert len(set(drawn)) > 200


@pytest.mark.slow  # streams of a tiny model side by side are in every run
def test_concurrent_streams_progress_together_and_equal_their_solo_runs(client: openai.OpenAI, server: Server) -> None:
    prompts = [f"Chapter {i}. It was" for i in range(8)]
    solo = [complete(client, prompt, max_tokens=20).choices[0].text for prompt in prompts]
    arrivals: list[tuple[int, int]] = []

    def stream(index: int) -> str:
        text = ""
        for position, chunk in enumerate(complete(client, prompts[index], stream=True, max_tokens=20)):
            arrivals.append((index, position))
            text += chunk.choices[0].text
        return text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stream, range(8))) == solo
    firsts = [next(i for i, (index, _) in enumerate(arrivals) if index == wanted) for wanted in range(8)]
    ends = [max(i for i, (index, _) in enumerate(arrivals) if index == wanted) for wanted in range(8)]
    assert max(firsts) < min(ends), "one stream ended before another began"
    server.wait_idle()
