"""The commands that generate, each as an operator meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from corefw import __version__
from corefw.testing.server_process import Server
from tests.cli.commands import corefw

GREEDY = ("--temperature", "0", "--max-tokens", "5", "--ignore-eos")


def answer(server: Server, messages: list[dict[str, str]]) -> str:
    body = {"messages": messages, "temperature": 0, "max_tokens": 5, "ignore_eos": True}
    answered = httpx.post(f"{server.url}/v1/chat/completions", json=body).raise_for_status().json()
    return str(answered["choices"][0]["message"]["content"])


def test_help_names_every_command() -> None:
    shown = corefw("--help").stdout
    names = ("serve", "chat", "complete", "generate", "run-batch", "bench", "plugins", "diagnose", "collect-env")
    assert [name for name in names if f"    {name}" not in shown] == []


@pytest.mark.parametrize("words", [("--help",), ("bench", "serve", "--help"), ("collect-env", "--help")])
def test_help_imports_no_torch_and_is_quick(words: tuple[str, ...]) -> None:
    code = (
        "import contextlib, sys, time\nstart = time.process_time()\nfrom corefw.cli.main import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({list(words)})\n"
        "print(int('torch' in sys.modules), time.process_time() - start)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    has_torch, cpu_s = run.stdout.splitlines()[-1].split()
    assert has_torch == "0"
    assert float(cpu_s) < 0.9


def test_chat_prints_what_the_server_answers(tiny_server: Server) -> None:
    shown = corefw("chat", "--url", f"{tiny_server.url}/v1", "-q", "hello", "--system-prompt", "be brief", *GREEDY)
    expected = answer(tiny_server, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
    assert (shown.returncode, shown.stdout.strip("\n")) == (0, expected.strip("\n"))


def test_chat_remembers_the_conversation(tiny_server: Server) -> None:
    shown = corefw("chat", "--url", tiny_server.url, *GREEDY, stdin="first\nsecond\n")
    messages = [{"role": "user", "content": "first"}]
    first = answer(tiny_server, messages)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "second"}]
    assert shown.stdout == f"{first}\n{answer(tiny_server, messages)}\n"


def test_complete_continues_each_line_and_goes_on_after_an_error(tiny_server: Server) -> None:
    shown = corefw("complete", "--url", tiny_server.url, *GREEDY, stdin="one\n" + "x" * 400 + "\ntwo\n")
    assert shown.returncode == 0
    assert "400" in shown.stderr
    assert "context length" in shown.stderr
    expected = [
        httpx.post(
            f"{tiny_server.url}/v1/completions",
            json={"prompt": prompt, "temperature": 0, "max_tokens": 5, "ignore_eos": True},
        ).json()["choices"][0]["text"]
        for prompt in ("one", "two")
    ]
    assert shown.stdout == "".join(f"{text}\n" for text in expected)


def test_a_model_here_answers_as_the_server_does(tiny: Path, tiny_server: Server) -> None:
    local = ("chat", str(tiny), "--dtype", "float32", "--kv-cache-memory", "8MiB", "-q", "hello", *GREEDY)
    shown = corefw(*local, env={"COREFW_API_KEY": "secret"})
    assert shown.stdout == answer(tiny_server, [{"role": "user", "content": "hello"}]) + "\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chat", "-q", "x", "--url", "http://127.0.0.1:9"), "is a server running there?"),
        (("chat", "-q", "x", "--url", "nowhere"), "write http://HOST:PORT"),
        (("chat", "some/model", "-q", "x", "--url", "http://127.0.0.1:9"), "not both"),
        (("complete", "-q", "x", "--max-model-len", "9"), "--max-model-len"),
        (("generate",), "no prompts"),
        (("generate", "-i", "missing.txt"), "missing.txt"),
        (("run-batch", "-i", "missing.jsonl", "-o", "-"), "missing.jsonl"),
        (("bench", "serve", "--goodput", "speed:3"), "ttft:MS"),
        (("bench", "serve", "--ramp-up-strategy", "linear"), "--ramp-up-start-rps"),
        (("bench", "serve", "--num-prompts", "0", "--model", "m"), "--num-prompts"),
    ],
)
def test_a_mistake_is_one_clear_message(words: tuple[str, ...], said: str) -> None:
    shown = corefw(*words)
    assert shown.returncode == 1
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (b'"a text"\n{"prompt": 3}\n', "line 2: is neither a text nor an object"),
        (b'{"prompt_token_ids": "12"}\n', "line 1: is neither"),
        (b'{"messages": "hi"}\n', "line 1: is neither"),
        (b'{"messages": [], "max_tokens": 3}\n', "line 1: is neither"),
        (b"3\n", "line 1: is neither"),
        (b"{\n", "line 1: not JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b'"a text"\n{"messages": []}\n', "give one kind in a run"),
        (b"\xff\n", "isn't UTF-8"),
    ],
)
def test_a_line_that_is_no_prompt_is_named_before_the_output_is_touched(
    lines: bytes, said: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines)
    target.write_text("kept")
    shown = corefw("generate", "-i", str(source), "-o", str(target))
    assert shown.returncode == 1
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr
    assert target.read_text() == "kept"


def test_generate_writes_a_line_a_prompt_in_order(tiny: Path, tmp_path: Path) -> None:
    more, output = tmp_path / "more.jsonl", tmp_path / "out.jsonl"
    more.write_text('"a text"\n{"prompt": "an object"}\n{"prompt_token_ids": [1, 2, 3]}\n')
    flags = ("--model", str(tiny), "--kv-cache-memory", "8MiB", "--n", "2", "--stop", "never there", *GREEDY)
    shown = corefw("generate", *flags, "-i", str(more), "-o", str(output), "the first")
    assert shown.returncode == 0, shown.stderr
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert [result["prompt"] for result in results] == ["the first", "a text", "an object", None]
    assert [[len(item["token_ids"]) for item in result["outputs"]] for result in results] == [[5, 5]] * 4


def test_run_batch_answers_each_line_in_order_with_its_own_error(tiny: Path, tmp_path: Path) -> None:
    body = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": "text", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", **body}},
        "not an object",
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions",
         "body": {"messages": [{"role": "user", "content": "hi"}], **body}},
        {"custom_id": "text", "method": "POST", "url": "/v1/completions", "body": {"prompt": "again"}},
        {"custom_id": "long", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x" * 999}},
        {"custom_id": "route", "method": "POST", "url": "/v1/other", "body": {}},
    ]  # fmt: skip
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = corefw("run-batch", "-i", str(source), "-o", str(target), "--model", str(tiny), "--kv-cache-memory", "8MiB")
    assert shown.returncode == 1
    assert "4 requests failed" in shown.stderr
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [result["custom_id"] for result in results] == ["text", None, "chat", "text", "long", "route"]
    assert results[0]["response"]["body"]["usage"]["completion_tokens"] == 3
    assert results[2]["response"]["body"]["object"] == "chat.completion"
    assert results[4]["response"]["status_code"] == 400
    assert [result["error"] and result["error"]["message"].split(":")[0] for result in results] == [
        None, "line 2", None, "line 4", None, "line 6",
    ]  # fmt: skip


def test_collect_env_names_versions_and_hides_secrets() -> None:
    shown = corefw("collect-env", "--json", env={"COREFW_API_KEY": "very-secret", "HF_HUB_OFFLINE": "1"})
    assert "very-secret" not in shown.stdout
    report = json.loads(shown.stdout)
    assert report["corefw"]["version"] == __version__
    assert report["torch"]["version"] == report["packages"]["torch"]
    assert report["environment"] == {**report["environment"], "COREFW_API_KEY": "(set)", "HF_HUB_OFFLINE": "1"}
    assert "platform_plugins:cpu" in report["plugins"]
