"""Engine cores as actors, on a real cluster of two nodes with a CPU each."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import ray
from ray.util import placement_group_table

from corefw.errors import ConfigError
from corefw.testing.core_launcher_suite import CoreLauncherSuite
from corefw.testing.offline_runs import PROMPTS, open_tiny, tiny_llama, tokens_of
from corefw.testing.server_process import Server, is_alive, launch, stop
from corefw_executor_ray.core_launcher import RayCoreLauncher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    # Ray's own sockets and log files are closed by its interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

_GONE_S = 30.0
_NUM_TOKENS = 100
_FLAGS = (
    *("--served-model-name", "tiny", "--dtype", "float32", "--num-gpu-blocks-override", "200"),
    *("--data-parallel-size", "2", "--data-parallel-backend", "ray", "--plugins", "ray"),
)
_PLACED = re.compile(r"engine core (\d): process (\d+) on \S+, under actor process (\d+)")


class TestRayCoreLauncher(CoreLauncherSuite):
    plugin = RayCoreLauncher


@contextmanager
def _cluster_seen() -> Iterator[None]:
    ray.init(address="auto", log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


def _until(condition: Callable[[], bool], limit_s: float = _GONE_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it doesn't come about"
        time.sleep(0.1)


def _check_nothing_is_left(pids: set[int]) -> None:
    _until(lambda: not any(map(is_alive, pids)))
    with _cluster_seen():
        _until(lambda: ray.available_resources().get("CPU") == 2.0)
        assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}


def _placed(server: Server) -> dict[int, tuple[int, int]]:
    """By engine the process ids of the present core and its actor."""
    return {int(index): (int(core), int(actor)) for index, core, actor in _PLACED.findall(server.log)}


def _answers(server: Server) -> list[str]:
    body = {"model": "tiny", "max_tokens": _NUM_TOKENS, "temperature": 0, "ignore_eos": True}

    def ask(prompt: list[int]) -> str:
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "prompt": prompt}, timeout=300)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def test_engines_on_two_nodes_give_one_process_s_texts_also_when_an_actor_or_a_core_is_killed() -> None:
    server = launch(str(tiny_llama()), *_FLAGS)
    try:
        with _cluster_seen():
            (group,) = (one for one in placement_group_table().values() if one["state"] == "CREATED")
            assert len(set(group["bundles_to_node_id"].values())) == 2
        expected = _answers(server)
        assert {line.split("core ")[1][0] for line in server.log.splitlines() if " INFO core " in line} == {"0", "1"}
        for engine, which in ((0, "actor"), (1, "core")):
            core, actor = _placed(server)[engine]
            victim = actor if which == "actor" else core
            threading.Timer(0.2, os.kill, (victim, signal.SIGKILL)).start()
            assert _answers(server) == expected
            _until(lambda old=(core, actor), engine=engine: _placed(server)[engine] != old)  # type: ignore[misc]
            _until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
            assert not is_alive(core)
        assert "was lost with its actor" in server.log
        assert "was killed by signal 9 (SIGKILL)" in server.log
        pids = {pid for pair in _placed(server).values() for pid in pair}
    finally:
        assert stop(server) == 0
    _check_nothing_is_left(pids)
    with open_tiny() as llm:
        whole = llm.generate(PROMPTS, _params())
        assert [result.outputs[0].text for result in whole] == expected


def _params() -> Any:
    from corefw.messages.sampling import SamplingParams

    return SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True, seed=0)


def test_a_front_end_that_is_killed_leaves_no_core_no_actor_and_no_placement_group() -> None:
    server = launch(str(tiny_llama()), *_FLAGS)
    try:
        pids = {pid for pair in _placed(server).values() for pid in pair}
        assert all(map(is_alive, pids))
        server.process.kill()
        server.process.wait()
        _check_nothing_is_left(pids)
    finally:
        stop(server)


def test_a_core_s_ranks_may_be_actors_too() -> None:
    with open_tiny() as llm:
        expected = tokens_of(llm)
    with open_tiny(
        plugins="ray", data_parallel_backend="ray", distributed_executor_backend="ray", tensor_parallel_size=2
    ) as llm:
        assert tokens_of(llm) == expected
    _check_nothing_is_left(set())


def test_more_engines_than_there_is_room_for_are_refused_with_what_there_is() -> None:
    with (
        pytest.raises(ConfigError, match=r"3 engines need 3 times 1 CPU.*has fewer: .* has .*ray start"),
        open_tiny(plugins="ray", data_parallel_backend="ray", data_parallel_size=3),
    ):
        pass
