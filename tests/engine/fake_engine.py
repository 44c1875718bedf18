"""Requests, configurations and an observable executor for tests of the core."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from corefw.config.engine_config import EngineConfig
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.messages.outputs import EngineCoreOutput, ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import FakeExecutor, fake_tokens

WATCHED = "tests.engine.fake_engine:WatchedExecutor"


class WatchedExecutor(FakeExecutor):
    """Keeps what it was told, where the test can read it."""

    latest: ClassVar[WatchedExecutor]

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        super().__init__(config, plugins)
        WatchedExecutor.latest = self
        self.steps: list[SchedulerOutput] = []
        self.num_shutdowns = 0
        self.fail: Callable[[str], None]
        self.during_step: Callable[[], None] = lambda: None
        self.during_call: Callable[[], None] = lambda: None
        self.calls: list[tuple[Any, ...]] = []

    def execute_model(self, scheduled: SchedulerOutput) -> Any:
        self.steps.append(scheduled)
        return super().execute_model(scheduled)

    def sample_tokens(self) -> Any:
        self.during_step()
        return super().sample_tokens()

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        self.during_call()
        return super().collective_rpc(method, *args)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self.fail = callback

    def shutdown(self) -> None:
        self.num_shutdowns += 1
        super().shutdown()

    def held(self) -> list[str]:
        """Ids of the requests that the worker knows."""
        held: list[str] = self.collective_rpc("held")[0]
        return held


class StuckScheduler(DefaultScheduler):
    """Never comes back from putting a step together for a request named "stuck"."""

    def add_request(self, request: EngineCoreRequest) -> None:
        super().add_request(request)
        self._is_stuck = request.request_id == "stuck"

    def schedule(self) -> SchedulerOutput:
        while self.has_work() and self._is_stuck:
            time.sleep(0.01)
        return super().schedule()


class ExtraExecutor(FakeExecutor):
    """Sends data of its own back with every token: plain, but for a request named "bad"."""

    def _finish(self) -> ModelRunnerOutput:
        result = super()._finish()
        return ModelRunnerOutput(
            request_ids=result.request_ids,
            sampled_token_ids=result.sampled_token_ids,
            extra={i: {"seen": object() if i == "bad" else [1, "a", b"b"]} for i in result.request_ids},
        )


@cache
def plugins() -> PluginManager:
    return PluginManager.discover(allow="")


def config(**overrides: Any) -> EngineConfig:
    return fake_config(**{"resolved": plugins().resolved(), **overrides})


def request(request_id: str, num_tokens: int = 5, *, prompt_ids: list[int] | None = None, **extra: Any) -> Any:
    params = SamplingParams(temperature=0, seed=1, max_tokens=num_tokens)
    return EngineCoreRequest(
        request_id=request_id, prompt_ids=prompt_ids or prompt(request_id), params=params, extra=extra
    )


def prompt(request_id: str) -> list[int]:
    return [1, *request_id.encode()]


def expected(request_id: str, num_tokens: int = 5) -> list[int]:
    """The tokens that a request of that id gets."""
    return fake_tokens(prompt(request_id), num_tokens)


def run(engine: LLMEngine) -> dict[str, list[EngineCoreOutput]]:
    """Step until there is nothing to do; the outputs by request."""
    outputs: dict[str, list[EngineCoreOutput]] = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]
