"""What an executor and its workers tell each other: the start, commands, answers. Plain data, no code."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.errors import (
    ConfigError,
    CorefwError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    PluginError,
    RequestError,
)
from corefw.interfaces.executor import WorkerReport
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.messages.control_channel import StartFailed
from corefw.messages.events import PluginEvent
from corefw.messages.kv_transfer import TransferResults
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.scheduling import SchedulerOutput

__all__ = [
    "Answer",
    "Call",
    "Command",
    "ExecuteModel",
    "Failure",
    "Initialize",
    "LayerSpec",
    "MakeReport",
    "RankReport",
    "SampleTokens",
    "StartMessage",
    "Stop",
    "WorkerConfigure",
    "WorkerReady",
    "cause",
    "joined",
]


class WorkerConfigure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """To a worker: who it is and what to build.

    Attributes:
        config: the engine's, the resolved plugin set in it.
        rank: this worker's, in the engine's grid.
        address: where the ranks meet.
        log_level, log_format: of its records.
        search_path: the parent's ``sys.path``.
        local_rank: place among the ranks of its machine; None where all are on one.
        on_one_machine: whether all are; None where the address says it.
    """

    config: EngineConfig
    rank: int
    address: str
    log_level: str
    log_format: str
    search_path: tuple[str, ...]
    local_rank: int | None = None
    on_one_machine: bool | None = None

    @property
    def is_output_rank(self) -> bool:
        """Whether a step's output is this rank's to tell."""
        return self.rank == self.config.parallel.grid.output_rank


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: the model is loaded."""


StartMessage = WorkerConfigure | WorkerReady | StartFailed


class MakeReport(msgspec.Struct, frozen=True, tag="report"):
    """``Worker.report``."""


class Initialize(msgspec.Struct, frozen=True, tag="initialize"):
    """``Worker.initialize``."""

    plan: RuntimePlan


class ExecuteModel(msgspec.Struct, frozen=True, tag="execute"):
    """``Worker.execute_model``. Has no answer of its own: what goes wrong is answered to ``SampleTokens``."""

    scheduled: SchedulerOutput


class SampleTokens(msgspec.Struct, frozen=True, tag="sample"):
    """``Worker.sample_tokens``."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """``Worker.call``."""

    method: str
    args: list[Any]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the process; without an answer."""


Command = MakeReport | Initialize | ExecuteModel | SampleTokens | Call | Stop


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker raised.

    Attributes:
        kind: of corefw's own errors which it was, ``other`` where it was none of them.
        message: what it said.
    """

    kind: str
    message: str

    @classmethod
    def from_exception(cls, error: Exception) -> Failure:
        """Describe an exception."""
        for kind, types in _KINDS.items():
            if isinstance(error, types):
                return cls(kind=kind, message=str(error))
        return cls(kind="other", message=f"{type(error).__name__}: {error}")

    def to_exception(self, rank: int) -> Exception:
        """What the executor raises."""
        if self.kind == "other":  # not fit for clients, who are told nothing but corefw's own errors
            return RuntimeError(f"worker {rank}: {self.message}")
        named = self.message if self.kind == "request" else f"worker {rank}: {self.message}"
        raised: Exception = _KINDS[self.kind](named)
        return raised


_KINDS: dict[str, type[CorefwError]] = {
    "request": RequestError,
    "config": ConfigError,
    "plugin": PluginError,
    "start": EngineStartError,
    "dead": EngineDeadError,
    "engine": EngineError,
}


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's KV-cache spec.

    Attributes:
        layer: its name.
        spec_class: ``module:Class`` of the spec, which may be a plugin's.
        fields: of the spec; a fraction as ``[numerator, denominator]``.
    """

    layer: str
    spec_class: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, layer: str, spec: KVCacheSpec) -> LayerSpec:
        """Describe a spec, so that another process can make an equal one."""
        fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.init}
        kind = type(spec)
        return cls(
            layer=layer,
            spec_class=f"{kind.__module__}:{kind.__qualname__}",
            fields={
                name: list(value.as_integer_ratio()) if isinstance(value, Fraction) else value
                for name, value in fields.items()
            },
        )

    def spec(self) -> KVCacheSpec:
        """An equal spec.

        Raises:
            PluginError: its class isn't here, or isn't one of a spec.
        """
        module, _, name = self.spec_class.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"the KV-cache spec {self.spec_class} of layer {self.layer} isn't here: {error}"
            ) from error
        if not (isinstance(found, type) and issubclass(found, KVCacheSpec)):
            raise PluginError(f"{self.spec_class} of layer {self.layer} is no KV-cache spec")
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in self.fields.items()}
        if isinstance(per_state := fields["tokens_per_state"], tuple):
            fields["tokens_per_state"] = Fraction(*per_state)
        make: Callable[..., KVCacheSpec] = found
        return make(**fields)


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """A ``WorkerReport`` on its way."""

    layers: list[LayerSpec]
    available_kv_bytes: int
    attention_backend: str
    decisions: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, report: WorkerReport) -> RankReport:
        """Describe a report."""
        return cls(
            layers=[LayerSpec.of(layer, spec) for layer, spec in report.kv_cache_specs.items()],
            available_kv_bytes=report.available_kv_bytes,
            attention_backend=report.attention_backend,
            decisions=report.decisions,
        )

    def report(self) -> WorkerReport:
        """An equal report."""
        return WorkerReport(
            kv_cache_specs={each.layer: each.spec() for each in self.layers},
            available_kv_bytes=self.available_kv_bytes,
            attention_backend=self.attention_backend,
            decisions=self.decisions,
        )


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """To every command but ``ExecuteModel`` and ``Stop``, one from each rank.

    Attributes:
        failure: set instead of all else when the command failed.
        output: of a step, from the rank that has it.
        transfers, events, num_dropped_events: of a step, from the other ranks: what only they know.
        report: the answer to ``MakeReport``.
        value: what was called by name returned.
    """

    failure: Failure | None = None
    output: ModelRunnerOutput | None = None
    transfers: tuple[TransferResults, ...] = ()
    events: list[PluginEvent] = []
    num_dropped_events: int = 0
    report: RankReport | None = None
    value: Any = None


def cause(answers: Sequence[Answer]) -> Exception | None:
    """What made a command fail, of the answers by rank; None where none did."""
    failures = [answer.failure.to_exception(rank) for rank, answer in enumerate(answers) if answer.failure is not None]
    # Who complains about another rank isn't the cause.
    return min(failures, key=lambda error: isinstance(error, EngineDeadError), default=None)


def joined(answers: Sequence[Answer]) -> ModelRunnerOutput:
    """The step's output, with what only other ranks know."""
    output = next(answer.output for answer in answers if answer.output is not None)
    if len(answers) == 1:
        return output
    others = [answer for answer in answers if answer.output is None]
    return msgspec.structs.replace(
        output,
        transfers=(*output.transfers, *(each for answer in others for each in answer.transfers)),
        events=[*output.events, *(event for answer in others for event in answer.events)],
        num_dropped_events=output.num_dropped_events + sum(answer.num_dropped_events for answer in others),
    )
