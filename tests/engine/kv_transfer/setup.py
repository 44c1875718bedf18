"""A scheduler with a connector that says what the test wants."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from corefw.config.engine_config import CacheConfig, KVTransferConfig, SchedulerConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.scheduler.scheduler import DefaultScheduler
from corefw.interfaces.kv_connector import (
    NOTHING_LEFT_TO_SEND,
    ConnectorSetup,
    FinishedTransfer,
    KVRequest,
    Matched,
    SchedulerConnector,
)
from corefw.messages.kv_transfer import TransferResults
from corefw.messages.outputs import EngineCoreOutput, FinishReason, ModelRunnerOutput
from corefw.messages.request import PlainDict
from corefw.messages.scheduling import SchedulerOutput
from corefw.plugin_system.manager import PluginManager
from tests.engine.scheduler.setup import BLOCK_SIZE, make_config, make_spec, plugins

NUM_BLOCKS = 20


class ScriptedConnector(SchedulerConnector):
    """Answers by request id; writes down what it is told."""

    def __init__(self) -> None:
        self.matches: dict[str, Matched] = {}
        self.endings: dict[str, FinishedTransfer] = {}
        self.allocated: list[tuple[str, int, int]] = []
        self.ended: list[tuple[str, FinishReason]] = []
        self.results: list[TransferResults] = []
        self.num_resets = 0
        self.raises: set[str] = set()
        self.nonsense: dict[str, Any] = {}

    def matched_tokens(self, request: KVRequest, num_local_tokens: int) -> Matched:
        self._raise_if_told("matched_tokens")
        if "matched_tokens" in self.nonsense:
            return cast(Matched, self.nonsense["matched_tokens"])
        return self.matches.get(request.request_id, Matched(0))

    def after_alloc(self, request: KVRequest, num_local_tokens: int, num_external_tokens: int) -> None:
        self._raise_if_told("after_alloc")
        self.allocated.append((request.request_id, num_local_tokens, num_external_tokens))

    def build_metadata(self, scheduled: SchedulerOutput) -> PlainDict:
        self._raise_if_told("build_metadata")
        if "build_metadata" in self.nonsense:
            return cast(PlainDict, self.nonsense["build_metadata"])
        return {"step": scheduled.step}

    def update(self, results: TransferResults) -> None:
        self.results.append(results)

    def request_finished(self, request: KVRequest, reason: FinishReason) -> FinishedTransfer:
        self.ended.append((request.request_id, reason))
        if "request_finished" in self.nonsense:
            return cast(FinishedTransfer, self.nonsense["request_finished"])
        return self.endings.get(request.request_id, NOTHING_LEFT_TO_SEND)

    def cache_reset(self) -> None:
        self.num_resets += 1

    def _raise_if_told(self, method: str) -> None:
        if method in self.raises:
            raise ValueError(f"told to raise in {method}")


class PluginsWith:
    """The plugins, and this connector under any name."""

    def __init__(self, connector: SchedulerConnector) -> None:
        self._connector = connector

    def get(self, group: str, name: str, *, setting: str | None = None) -> Any:
        if group != "kv_connectors":
            return plugins().get(group, name, setting=setting)
        connector = self._connector

        class Chosen:
            options_type = None

            @classmethod
            def scheduler(cls, _setup: ConnectorSetup) -> SchedulerConnector:
                return connector

        return Chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(plugins(), name)


class Bench:
    """A scheduler, its connector, and steps whose sampled token is always 7."""

    def __init__(
        self,
        *,
        num_blocks: int = NUM_BLOCKS,
        policy: str = "recompute",
        num_ranks: int = 1,
        window: int | None = None,
        **limits: Any,
    ) -> None:
        self.connector = ScriptedConnector()
        config = dataclasses.replace(
            make_config(scheduler=SchedulerConfig(**limits), cache=CacheConfig()),
            kv_transfer=KVTransferConfig(kv_connector="scripted", kv_load_failure_policy=policy),
        )
        parallel = dataclasses.replace(config.parallel, tensor_parallel_size=num_ranks)
        specs = [make_spec()] if window is None else [make_spec(), make_spec(window=window)]
        plan = RuntimePlan(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_model_len=64,
            kv_cache_bytes=0,
            attention_backend="none",
            layer_groups=tuple((f"layer{index}",) for index in range(len(specs))),
        )
        self.scheduler = DefaultScheduler(
            dataclasses.replace(config, parallel=parallel),
            plan,
            specs,
            cast(PluginManager, PluginsWith(self.connector)),
        )

    @property
    def num_used(self) -> int:
        """KV blocks that aren't free."""
        return self.scheduler._kv.pool.num_used_blocks

    def connector_blocks(self, request_id: str) -> list[int]:
        """The request's blocks of the first group."""
        return self.scheduler._kv.block_ids(self.scheduler._requests[request_id])[0]

    def step(self, *reports: TransferResults) -> tuple[SchedulerOutput, list[EngineCoreOutput]]:
        """One step; the workers report these transfers with it."""
        scheduled = self.scheduler.schedule()
        return scheduled, self.finish(scheduled, *reports)

    def finish(self, scheduled: SchedulerOutput, *reports: TransferResults) -> list[EngineCoreOutput]:
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [[7] if self._is_due(request_id, scheduled) else [] for request_id in ids]
        result = ModelRunnerOutput(request_ids=ids, sampled_token_ids=sampled, transfers=reports)
        return self.scheduler.update(scheduled, result)

    def run(self, max_steps: int = 100) -> dict[str, list[EngineCoreOutput]]:
        """Steps until nothing is left; outputs by request."""
        outputs: dict[str, list[EngineCoreOutput]] = {}
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                return outputs
            for output in self.step()[1]:
                outputs.setdefault(output.request_id, []).append(output)
        raise AssertionError(f"still busy after {max_steps} steps")

    def _is_due(self, request_id: str, scheduled: SchedulerOutput) -> bool:
        request = self.scheduler._requests.get(request_id)
        if request is None:
            return False
        return request.num_computed_tokens + scheduled.num_scheduled_tokens[request_id] == request.num_tokens


def received(*ids: str, failed: tuple[str, ...] = (), blocks: tuple[int, ...] = (), rank: int = 0) -> TransferResults:
    return TransferResults(rank=rank, finished_receiving=ids, failed_receiving=failed, failed_blocks=blocks)
