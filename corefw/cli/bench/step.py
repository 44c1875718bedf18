"""``corefw bench step``: how long the stages of a decode step take, and its operators."""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corefw.cli.bench.offline import add_engine_flags, fixed_params, open_llm, random_ids, show
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
        show(options, {**stages.figures(), "batch_size": options.batch_size, "operators": len(ops)})
        for name, calls, self_us in ops:
            print(f"  {self_us / options.num_steps:10.1f} us a step  {calls // options.num_steps:5d} calls  {name}")
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


class _Stages:
    """Wraps the core's scheduler and executor in clocks, for the length of a block."""

    _CALLS = (
        ("_scheduler", "schedule", "schedule"),
        ("_executor", "execute_model", "forward"),
        ("_executor", "sample_tokens", "sample"),
        ("_scheduler", "update", "update"),
    )

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._times_s: dict[str, list[float]] = {stage: [] for *_, stage in self._CALLS}
        self._steps_s: list[float] = []

    def __enter__(self) -> _Stages:
        for owner, method, stage in self._CALLS:
            part = getattr(self._engine.core, owner)
            setattr(part, method, _timed(getattr(part, method), self._times_s[stage]))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, method, _stage in self._CALLS:
            delattr(getattr(self._engine.core, owner), method)

    def step(self) -> None:
        """One step."""
        start_s = time.perf_counter()
        self._engine.step()
        self._steps_s.append(time.perf_counter() - start_s)

    def figures(self) -> dict[str, Any]:
        """Medians in milliseconds."""
        stages = {f"{stage}_ms": statistics.median(times) * 1000 for stage, times in self._times_s.items()}
        whole = statistics.median(self._steps_s) * 1000
        return {"step_ms": whole, **stages, "rest_ms": whole - sum(stages.values())}


def _timed(function: Callable[..., Any], times_s: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return function(*args)
        finally:
            times_s.append(time.perf_counter() - start_s)

    return timed


def _profile(engine: LLMEngine, options: argparse.Namespace) -> list[tuple[str, int, float]]:
    """Operators by the CPU time of their own: name, calls, microseconds, over all steps."""
    profiler: Any = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(options.num_steps):
            engine.step()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [(event.key, event.count, event.self_cpu_time_total) for event in events[: options.num_ops]]
