"""Offline use with engines in processes of their own: the same results, whatever dies."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corefw import LLM, SamplingParams
from corefw.errors import ConfigError, EngineError, RequestError
from corefw.testing.tiny_models import write_tiny_llama
from tests.engine.leftovers import children

PROMPTS = [f"{number} little words and {'so on ' * (number % 4)}" for number in range(8)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=7, max_tokens=40, ignore_eos=True, n=2),
    SamplingParams(temperature=0.0, max_tokens=40, logprobs=2, repetition_penalty=1.2, stop=("e",)),
    SamplingParams(temperature=0.7, seed=3, top_p=0.9, max_tokens=40, min_tokens=20),
] * 2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def opened(model: Path, **settings: Any) -> LLM:
    return LLM(str(model), dtype="float32", kv_cache_memory=4 * 2**20, **settings)


def results(llm: LLM) -> list[list[tuple[object, ...]]]:
    return [
        [(output.text, tuple(output.token_ids), output.finish_reason, output.stop_reason) for output in result.outputs]
        for result in llm.generate(PROMPTS, PARAMS)
    ]


@pytest.fixture(scope="module")
def expected(tiny: Path) -> list[list[tuple[object, ...]]]:
    with opened(tiny) as llm:
        return results(llm)


@pytest.fixture(scope="module")
def two(tiny: Path) -> Iterator[LLM]:
    with opened(tiny, data_parallel_size=2) as llm:
        yield llm


def cores() -> list[int]:
    """Processes of engine cores that this one has started."""
    found = []
    for pid in children():
        with contextlib.suppress(OSError):
            if "corefw.engine.core_main" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def idle(llm: LLM) -> bool:
    stats = llm.engine.call("stats")
    return (stats["num_running"], stats["num_waiting"], stats["kv_usage"]) == (0, 0, 0.0)


def test_several_engines_share_the_work_and_say_the_same(two: LLM, expected: list[list[tuple[object, ...]]]) -> None:
    assert results(two) == expected
    assert two.engine.stats is not None
    assert all(one.num_generation_tokens > 100 for one in two.engine.stats.engines)
    assert idle(two)


def test_a_killed_engine_changes_no_text(
    two: LLM, expected: list[list[tuple[object, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_steps, step = 0, two.engine.step
    victim = cores()[0]

    def step_and_kill() -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 8:
            os.kill(victim, signal.SIGKILL)
        return step()

    two.reset_prefix_cache()
    with monkeypatch.context() as patch:
        patch.setattr(two.engine, "step", step_and_kill)
        assert results(two) == expected
    assert num_steps > 8
    assert victim not in cores()
    assert len(cores()) == 2
    assert idle(two)


def test_ctrl_c_and_a_wrong_prompt_leave_the_engines_usable(two: LLM) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        two.generate(["long"] * 100, SamplingParams(max_tokens=200, ignore_eos=True))
    assert idle(two)
    with pytest.raises(RequestError, match="prompt 1"):
        two.generate(["good", ""])
    assert two.reset_prefix_cache() is True


def test_one_engine_of_its_own_is_closed_with_its_process(
    tiny: Path, two: LLM, expected: list[list[tuple[object, ...]]]
) -> None:
    before = set(cores())
    with opened(tiny, enable_multiprocessing=True) as llm:
        assert len(set(cores()) - before) == 1
        with pytest.raises(EngineError, match="process of its own"):
            _ = llm.engine.core
        assert results(llm) == expected
    assert set(cores()) == before


def test_what_doesnt_go_together_is_refused(tiny: Path) -> None:
    before = children()
    with pytest.raises(ConfigError, match="data_parallel_size is 2, but here the engine has to run in this process"):
        opened(tiny, data_parallel_size=2, enable_multiprocessing=False)
    with pytest.raises(ConfigError, match=r"data_parallel_backend is mp, but here .*; leave it out"):
        opened(tiny, data_parallel_backend="mp", enable_multiprocessing=False)
    with pytest.raises(ConfigError, match="external_launcher runs one engine"):
        opened(tiny, enable_multiprocessing=True, distributed_executor_backend="external_launcher")
    assert children() <= before
