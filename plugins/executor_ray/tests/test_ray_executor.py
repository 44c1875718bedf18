"""The executor on a real cluster of two nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corefw.errors import ConfigError, EngineDeadError, EngineStartError
from corefw.llm import LLM
from corefw.testing.executor_suite import ExecutorSuite
from corefw.testing.offline_runs import PROMPTS, open_tiny, tokens_of, used_blocks
from corefw_executor_ray.executor import RayExecutor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    # Ray's own sockets and log files are closed by its interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class TestRayExecutor(ExecutorSuite):
    plugin = RayExecutor


@contextmanager
def _two_nodes(**settings: Any) -> Iterator[LLM]:
    with open_tiny(
        plugins="ray", distributed_executor_backend="ray", **({"tensor_parallel_size": 2} | settings)
    ) as llm:
        yield llm


def _executor(llm: LLM) -> RayExecutor:
    (found,) = (value for value in vars(llm.engine.core).values() if isinstance(value, RayExecutor))
    return found


def test_two_ranks_on_two_nodes_give_the_tokens_of_one_process() -> None:
    with open_tiny() as llm:
        expected = tokens_of(llm, PROMPTS * 2)
    with _two_nodes(num_gpu_blocks_override=24) as llm:
        assert len({home.node_id for home in _executor(llm).homes}) == 2
        assert tokens_of(llm, PROMPTS * 2) == expected
        assert used_blocks(llm) == 0


def test_a_rank_that_is_killed_ends_the_step_with_its_name() -> None:
    with _two_nodes() as llm:
        told: list[str] = []
        _executor(llm).on_failure(told.append)
        os.kill(_executor(llm).homes[1].pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"worker 1 on .* died"):
            tokens_of(llm)
        assert len(told) == 1


def test_more_ranks_than_the_cluster_has_room_for_are_refused_with_what_there_is() -> None:
    with (
        pytest.raises(ConfigError, match=r"4 ranks need 4 times 1 CPU.*has fewer: .* has .*ray start"),
        _two_nodes(tensor_parallel_size=4),
    ):
        pass


def test_room_that_others_hold_is_waited_for_and_then_named() -> None:
    import ray

    ray.init(address="auto", log_to_driver=False, configure_logging=False)
    try:
        held = ray.util.placement_group([{"CPU": 1}])
        assert held.wait(60)
        with (
            pytest.raises(EngineStartError, match=r"Ray had no room for 2 times 1 CPU in 2 s: free are .*ray status"),
            _two_nodes(distributed_timeout_seconds=2.0),
        ):
            pass
    finally:
        ray.shutdown()


def test_what_a_rank_cant_load_is_told_with_its_number(tmp_path: Any) -> None:
    from corefw.testing.tiny_models import write_tiny_llama

    model = write_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises((ConfigError, EngineStartError)), _two_nodes(model=model):
        pass


def test_without_a_cluster_the_start_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with (
        pytest.raises(ConfigError, match=r"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1: .*ray start --head"),
        _two_nodes(),
    ):
        pass
