"""Ranks side by side give what one gives, and leave nothing behind whoever is killed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from corefw.env import child_environment
from corefw.llm import LLM, SamplingParams
from corefw.testing.server_process import Server, is_alive, launch, stop, wait_until
from corefw.testing.tiny_models import write_tiny_llama

# Five seconds after a death nothing is left; a busy machine gets three times that.
GONE_LIMIT_S = 15.0
UNEVEN = {"hidden_size": 45, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 6, "vocab_size": 261}
NUM_LONG = 100
TEXTS = ["one", "a second prompt that is longer " * 4, "three"]
SETTINGS = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory": 4 * 2**20}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), **UNEVEN)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What one process says."""
    with LLM(str(model), **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, seed=1)
        return [result.outputs[0].text for result in llm.generate(TEXTS, params)]


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    ranks = ("--tensor-parallel-size", "2", "--no-restart-engine")
    running = launch(str(model), "--served-model-name", "tiny", *ranks, *FLAGS)
    yield running
    stop(running)


def answer(server: Server, prompt: str, num_tokens: int = 24) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def processes_of(session: int) -> dict[int, str]:
    """Living processes of a session and their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                if int(status[3]) == session and status[0] != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_a_server_with_two_ranks_answers_as_one_process_and_dies_of_a_workers_death(
    server: Server, expected: list[str]
) -> None:
    assert [answer(server, text) for text in TEXTS] == expected
    assert "ranks: 2 (tensor 2, run by executor mp)" in server.log
    running = processes_of(server.process.pid)
    os.kill(server.running("worker_main")[0], signal.SIGKILL)
    assert server.process.wait(GONE_LIMIT_S) != 0
    wait_until(lambda: not any(is_alive(pid) for pid in running), GONE_LIMIT_S)
    assert re.search(r"worker [01] was killed by signal 9 \(SIGKILL\)", server.log)


@pytest.mark.slow  # of two workers one is killed in every run, under many streams
@pytest.mark.parametrize("num_kills", [1, 10])
def test_clients_dont_notice_that_a_worker_was_killed(model: Path, num_kills: int) -> None:
    draw = random.Random(num_kills)
    with LLM(str(model), **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_LONG, ignore_eos=True, seed=1)
        expected = [result.outputs[0].text for result in llm.generate(TEXTS, params)]
    server = launch(str(model), "--served-model-name", "tiny", "--tensor-parallel-size", "2", *FLAGS)
    try:
        for _ in range(num_kills):
            with ThreadPoolExecutor() as pool:
                answers = [pool.submit(answer, server, text, NUM_LONG) for text in TEXTS]
                server.wait_busy()
                time.sleep(draw.random() * 0.3)
                os.kill(draw.choice(server.running("worker_main")), signal.SIGKILL)
                assert [each.result() for each in answers] == expected
            wait_until(lambda: len(server.running("worker_main")) == 2, 60)
    finally:
        stop(server)


@pytest.mark.slow
def test_more_ranks_than_kv_heads_give_the_tokens_of_one(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "few", **{**UNEVEN, "num_key_value_heads": 1, "vocab_size": 263})
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, seed=1)
    texts = []
    for size in (1, 3):
        with LLM(str(model), tensor_parallel_size=size, **SETTINGS) as llm:
            texts.append([result.outputs[0].text for result in llm.generate(TEXTS, params)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("tensor_parallel_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stages_give_the_tokens_of_one_process(model: Path, expected: list[str], tensor_parallel_size: int) -> None:
    sizes = {"pipeline_parallel_size": 2, "tensor_parallel_size": tensor_parallel_size}
    with LLM(str(model), **sizes, **SETTINGS) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, seed=1)
        assert [result.outputs[0].text for result in llm.generate(TEXTS, params)] == expected


KILLED = {"front end": "corefw.cli.main", "core": "core_main", "worker": "worker_main"}


def is_probe(path: Path) -> bool:
    """What Python writes to see whether it can use a temporary folder, and removes the next moment."""
    return path.is_file() and path.read_bytes() in (b"", b"blat")


@pytest.mark.parametrize("who", KILLED)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_a_kill_at_any_moment_of_the_start_leaves_nothing(model: Path, who: str, seed: int) -> None:
    draw = random.Random(f"{who} {seed}")
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        ranks = ("--tensor-parallel-size", "2", "--no-restart-engine")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "corefw.cli.main", "serve", str(model), "--port", "0", *ranks, *FLAGS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**child_environment(), "TMPDIR": folder},
            start_new_session=True,
        )

        def victims() -> list[int]:
            return [pid for pid, command in processes_of(process.pid).items() if KILLED[who] in command]

        try:
            wait_until(victims, 60)
            time.sleep(draw.random() * 3)
            os.kill(draw.choice(victims()), signal.SIGKILL)
            assert process.wait(GONE_LIMIT_S) != 0
            wait_until(lambda: not processes_of(process.pid), GONE_LIMIT_S)
            assert [path for path in Path(folder).iterdir() if not is_probe(path)] == []
        finally:
            for pid in processes_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()
