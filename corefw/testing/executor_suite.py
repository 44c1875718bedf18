"""Conformance suite of executors: a tiny model gives the tokens that it gives on the built-in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from corefw.errors import CorefwError
from corefw.interfaces.executor import Executor
from corefw.llm import LLM
from corefw.testing.offline_runs import PROMPTS, open_tiny, run_and_abort, tokens_of, used_blocks
from corefw.testing.registration import installed_as
from corefw.testing.suite import PluginSuite

__all__ = ["ExecutorSuite"]


class ExecutorSuite(PluginSuite):
    """For ``corefw.executors``. Runs real engines in this process."""

    plugin: ClassVar[type[Executor]]
    group = "executors"

    def test_tokens_are_those_of_the_built_in_executor(self) -> None:
        with open_tiny() as llm:
            expected = tokens_of(llm)
        with self._open() as llm:
            assert tokens_of(llm) == expected
            assert used_blocks(llm) == 0

    def test_tokens_are_the_same_where_requests_have_to_give_way(self) -> None:
        with open_tiny() as llm:
            expected = tokens_of(llm, PROMPTS * 2)
        with self._open(num_gpu_blocks_override=12) as llm:
            assert tokens_of(llm, PROMPTS * 2) == expected

    def test_aborted_requests_leave_nothing_behind(self) -> None:
        with self._open() as llm:
            run_and_abort(llm)
            assert used_blocks(llm) == 0

    def test_a_call_that_no_worker_knows_is_an_error(self) -> None:
        with self._open() as llm:
            try:
                self._executor(llm).collective_rpc("no_such_method")
            except (CorefwError, AttributeError):
                return
        raise AssertionError("collective_rpc() answers a call that doesn't exist")

    def test_it_may_be_shut_down_twice(self) -> None:
        with self._open() as llm:
            executor = self._executor(llm)
        executor.shutdown()
        executor.shutdown()
        assert isinstance(executor, Executor)

    def _executor(self, llm: LLM) -> Any:
        found = [value for value in vars(llm.engine.core).values() if isinstance(value, self.plugin)]
        assert found, f"the engine doesn't run on {self.plugin.__name__}"
        return found[0]

    @contextmanager
    def _open(self, **settings: Any) -> Iterator[LLM]:
        with (
            installed_as(self.group, self.name, self.plugin),
            open_tiny(plugins=self.name, distributed_executor_backend=self.name, **settings) as llm,
        ):
            yield llm
