"""``corefw bench step``: how long the stages of a decode step take on host and device, its operators and kernels."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.cli.bench.offline import add_engine_flags, fixed_params, open_llm, random_ids
from corefw.errors import ConfigError
from corefw.frontend.core_requests import core_requests

if TYPE_CHECKING:
    from corefw.engine.llm_engine import LLMEngine
    from corefw.llm import LLM

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw bench step``."""
    parser.add_argument("--batch-size", type=int, default=8, help="requests that decode together (default: 8)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of a prompt (default: 128)")
    parser.add_argument("--num-steps", type=int, default=50, help="measured decode steps (default: 50)")
    parser.add_argument("--num-ops", type=int, default=12, help="most costly operators shown; 0 is none (default: 12)")
    add_engine_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure decode steps by stage, then profile as many again by operator."""
    if options.num_steps < 1 or options.batch_size < 1:
        raise ConfigError("--num-steps and --batch-size must be at least 1")
    with open_llm(options, enable_multiprocessing=False) as llm:
        engine = llm.engine
        _begin(llm, options)
        with _Stages(engine) as stages:
            for _ in range(options.num_steps):
                stages.step()
        ops = _profile(engine, options) if options.num_ops else []
        kernels = _recorded_kernels(engine, options) if options.num_ops else []
    figures = stages.figures()
    print(_stage_table(figures))
    if ops:
        print(_operator_table("operator", ops, figures["step"]))
    if kernels:
        print(_operator_table("recorded kernel", kernels, figures["step"]))
    if options.output_json:
        result = {"batch_size": options.batch_size, "stages_ms": figures, "operators": ops, "kernels": kernels}
        Path(options.output_json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


def _begin(llm: LLM, options: argparse.Namespace) -> None:
    """Prefill a batch that then decodes for long enough."""
    import msgspec

    num_tokens = 2 * options.num_steps + 8
    params = msgspec.structs.replace(fixed_params(num_tokens), seed=0)
    for ids in random_ids(llm, options.batch_size, options.input_len):
        for request in core_requests(ids, params, eos_ids=()):
            llm.engine.add_request(request)
    num_started = 0
    while num_started < options.batch_size:
        num_started += sum(bool(output.new_token_ids) for output in llm.engine.step())
        if not llm.engine.has_work():
            raise ConfigError("the batch doesn't fit; take a smaller --batch-size or --input-len, or more KV cache")
    for _ in range(3):
        llm.engine.step()


@dataclass(frozen=True, slots=True)
class _Stage:
    """A call that is timed.

    Attributes:
        name: of the figure.
        within: the stage that it is a part of; None for those of the step itself.
        owner: attributes that lead from the core to whose method it is; where one is missing, so is the figure.
        method: the call.
    """

    name: str
    within: str | None
    owner: tuple[str, ...]
    method: str


_RUNNER = ("_executor", "_running", "_runner")
_STAGES = (
    _Stage("schedule", None, ("_scheduler",), "schedule"),
    _Stage("execute", None, ("_executor",), "execute_model"),
    _Stage("batch", "execute", (*_RUNNER, "batch"), "update"),
    _Stage("inputs", "execute", (*_RUNNER, "_preparation"), "prepare"),
    _Stage("replay", "execute", (*_RUNNER, "recorded"), "run"),
    _Stage("metadata", "execute", (*_RUNNER, "_assembly"), "assemble"),
    _Stage("model", "execute", (*_RUNNER, "_execution"), "run"),
    _Stage("sample", None, ("_executor",), "sample_tokens"),
    _Stage("update", None, ("_scheduler",), "update"),
)


class _Stages:
    """Puts clocks around parts of the core and of its worker, for the length of a block."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        found = [(stage, _owner(engine.core, stage.owner)) for stage in _STAGES]
        self._timed = [(stage, owner) for stage, owner in found if owner is not None]
        self._times_s: dict[str, list[float]] = {stage.name: [] for stage, _ in self._timed}
        self._steps_s: list[float] = []

    def __enter__(self) -> _Stages:
        for stage, owner in self._timed:
            setattr(owner, stage.method, _timed(getattr(owner, stage.method), self._times_s[stage.name]))
        return self

    def __exit__(self, *_: object) -> None:
        for stage, owner in self._timed:
            delattr(owner, stage.method)

    def step(self) -> None:
        """One step."""
        start_s = time.perf_counter()
        self._engine.step()
        self._steps_s.append(time.perf_counter() - start_s)

    def figures(self) -> dict[str, float]:
        """Medians in milliseconds, of the step and of each stage that there was; ``rest`` is what no stage has."""
        stages = {name: statistics.median(times) * 1000 for name, times in self._times_s.items() if times}
        whole = statistics.median(self._steps_s) * 1000
        outer = sum(stages[stage.name] for stage, _ in self._timed if stage.within is None)
        return {"step": whole, **stages, "rest": whole - outer}


def _owner(core: Any, path: Sequence[str]) -> Any:
    for name in path:
        core = getattr(core, name, None)
    return core


def _timed(function: Callable[..., Any], times_s: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **keywords: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return function(*args, **keywords)
        finally:
            times_s.append(time.perf_counter() - start_s)

    return timed


def _stage_table(figures: Mapping[str, float]) -> str:
    within = {stage.name: stage.within for stage in _STAGES}
    lines = ["| stage | ms | share |", "|---|---|---|"]
    for name, value in figures.items():
        label = f"{within[name]}: {name}" if within.get(name) else name
        lines.append(f"| {label} | {value:.3f} | {value / figures['step']:.0%} |")
    return "\n".join(lines)


def _operator_table(what: str, operators: Sequence[Mapping[str, Any]], step_ms: float) -> str:
    lines = ["", f"| {what} | calls a step | ms a step | share |", "|---|---|---|---|"]
    for row in operators:
        share = row["ms"] / step_ms
        lines.append(f"| {row['name']} | {row['calls']:g} | {row['ms']:.3f} | {share:.0%} |")
    return "\n".join(lines)


def _profile(engine: LLMEngine, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Operators by the CPU time of their own, a step; what a recorded step replays is none of torch's."""
    profiler: Any = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(options.num_steps):
            engine.step()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [
        {
            "name": event.key,
            "calls": event.count / options.num_steps,
            "ms": event.self_cpu_time_total / options.num_steps / 1000,
        }
        for event in events[: options.num_ops]
    ]


def _recorded_kernels(engine: LLMEngine, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the recorded step is made of, by kernel, median times; empty where steps aren't replayed whole."""
    recorded = _owner(engine.core, (*_RUNNER, "recorded", "last_replayed"))
    if recorded is None:
        return []
    replays = [recorded.times_ms() for _ in range(options.num_steps)]
    sums: dict[str, list[float]] = {}
    for calls in zip(*replays, strict=True):
        sums.setdefault(calls[0][0], []).append(statistics.median(time_ms for _, time_ms in calls))
    rows = [{"name": name, "calls": len(times), "ms": sum(times)} for name, times in sums.items()]
    return sorted(rows, key=lambda row: -float(row["ms"]))[: options.num_ops]
