"""An executor without a model: tokens are a function of (prompt, output position), and failures come when told to."""

from __future__ import annotations

import os
import signal
import time
import zlib
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corefw.errors import ConfigError, EngineDeadError
from corefw.interfaces.executor import Executor, WorkerReport
from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec
from corefw.messages.outputs import ModelRunnerOutput
from corefw.observability.logging import get_logger
from corefw.runtime.distributed.futures import settled

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.messages.scheduling import SchedulerOutput
    from corefw.plugin_system.manager import PluginManager

__all__ = ["FakeExecutor", "fake_token", "fake_tokens"]

_AVAILABLE_BYTES = 2**20

_log = get_logger(__name__)


def fake_token(prompt_ids: Sequence[int], position: int, vocab_size: int = 1000) -> int:
    """The output token at a position; never 0, so that an end token of 0 isn't hit."""
    return 1 + zlib.crc32(array("q", [*prompt_ids, position]).tobytes()) % (vocab_size - 1)


def fake_tokens(prompt_ids: Sequence[int], num_tokens: int, vocab_size: int = 1000) -> list[int]:
    """The first output tokens."""
    return [fake_token(prompt_ids, position, vocab_size) for position in range(num_tokens)]


@dataclass(slots=True)
class _Held:
    """What the worker keeps of a request."""

    prompt_ids: list[int]
    num_output_tokens: int
    num_computed_tokens: int
    extra: dict[str, Any]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + self.num_output_tokens

    def due(self, key: str) -> bool:
        return self.extra.get(key) == self.num_output_tokens


class FakeExecutor(Executor):
    """Checks what the scheduler tells it, and obeys a request's ``extra``:

    - ``delay_s``: every step with the request takes that long;
    - ``fail_at``: at that output position the request alone fails;
    - ``raise_at``: there the whole step raises; ``raise_in_forward_at``: the same, from the forward pass;
    - ``dead_at``: there the workers are gone (``EngineDeadError``);
    - ``crash_at``: there the process kills itself; ``exit_at``: there it exits with status 3.

    A model named ``fake:config-error``, ``fake:error``, ``fake:exit``, ``fake:kill`` or ``fake:slow`` fails to load, or
    loads for a minute.
    """

    name = "fake"

    def __init__(self, config: EngineConfig, plugins: PluginManager) -> None:
        del plugins
        self._config = config
        self._held: dict[str, _Held] = {}
        self._scheduled: SchedulerOutput | None = None
        _load(config.model.model)

    def reports(self) -> Sequence[WorkerReport]:
        spec = FullAttentionSpec(
            block_size=self._config.cache.block_size or 16, num_kv_heads=1, head_size=8, dtype="float32"
        )
        layers: dict[str, KVCacheSpec] = {f"layers.{i}": spec for i in range(self._config.model_info.num_layers)}
        return [
            WorkerReport(
                kv_cache_specs=layers, available_kv_bytes=_AVAILABLE_BYTES, attention_backend="none", decisions=()
            )
        ]

    def initialize(self, plan: RuntimePlan) -> None:
        del plan

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        return settled(lambda: self._start(scheduled))

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        return settled(self._finish)

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        del args
        if method == "dummy_step":
            _log.debug("a dummy step")
        answers: dict[str, Any] = {
            "dummy_step": None,
            "held": sorted(self._held),
            "kv_handshake": None,
            "plugin_calls": [],
            "set_log_level": None,
            "take_events": ([], 0),
        }
        return [answers[method]]

    def shutdown(self) -> None:
        self._held.clear()

    def _start(self, scheduled: SchedulerOutput) -> None:
        self._scheduled = scheduled
        for request_id in (*scheduled.finished_request_ids, *scheduled.preempted_request_ids):
            self._held.pop(request_id, None)
        for new in scheduled.new_requests:
            assert new.request_id not in self._held, f"{new.request_id} is held already"
            num_outputs = len(new.output_ids)
            self._held[new.request_id] = _Held(list(new.prompt_ids), num_outputs, new.num_computed_tokens, new.extra)
        cached = scheduled.cached_requests
        for request_id, num_computed, num_outputs in zip(
            cached.request_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            held = self._held[request_id]
            assert (held.num_computed_tokens, held.num_output_tokens) == (num_computed, num_outputs), request_id
        for held in self._running(scheduled).values():
            if held.due("raise_in_forward_at"):
                raise ValueError("told to raise in the forward pass")

    def _finish(self) -> ModelRunnerOutput:
        scheduled, self._scheduled = self._scheduled, None
        assert scheduled is not None, "sample_tokens comes after execute_model"
        running = self._running(scheduled)
        time.sleep(max((held.extra.get("delay_s", 0.0) for held in running.values()), default=0.0))
        for held in running.values():
            _fail_if_due(held)
        failed = {request_id: "told to fail" for request_id, held in running.items() if held.due("fail_at")}
        sampled = [self._advance(held, scheduled.num_scheduled_tokens[i]) for i, held in running.items()]
        return ModelRunnerOutput(request_ids=list(running), sampled_token_ids=sampled, failed=failed)

    def _running(self, scheduled: SchedulerOutput) -> dict[str, _Held]:
        return {request_id: self._held[request_id] for request_id in scheduled.num_scheduled_tokens}

    def _advance(self, held: _Held, num_scheduled: int) -> list[int]:
        held.num_computed_tokens += num_scheduled
        assert held.num_computed_tokens <= held.num_tokens, "more tokens scheduled than there are"
        if held.num_computed_tokens < held.num_tokens:
            return []
        token = fake_token(held.prompt_ids, held.num_output_tokens, self._config.model_info.vocab_size)
        held.num_output_tokens += 1
        return [token]


def _fail_if_due(held: _Held) -> None:
    if held.due("raise_at"):
        raise ValueError("told to raise")
    if held.due("dead_at"):
        raise EngineDeadError("told that the workers are gone")
    if held.due("crash_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    if held.due("exit_at"):
        os._exit(3)


def _load(model: str) -> None:
    match model:
        case "fake:config-error":
            raise ConfigError("told that the configuration is wrong")
        case "fake:error":
            raise ValueError("told to fail")
        case "fake:exit":
            os._exit(3)
        case "fake:kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fake:slow":
            time.sleep(60)
