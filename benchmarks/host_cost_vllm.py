"""The part of ``host_cost.py`` that runs where vLLM is installed: loads come in by lines, figures go out by lines."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from host_cost_load import BLOCK_SIZE, Clocks, output_len, prompt_ids, summary, timed
from process_border_vllm import MODEL, CostFreeExecutor
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore

_Point = dict[str, int]


def main() -> None:
    print("{}", flush=True)
    with tempfile.TemporaryDirectory() as model:
        for line in sys.stdin:
            point, num_steps = json.loads(line)
            print(json.dumps(_measure(model, point, num_steps)), flush=True)


def _measure(model: str, point: _Point, num_steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step of the scheduler's two halves."""
    num_warm_steps = 4 * BLOCK_SIZE
    core = EngineCore(_config(model, point, num_warm_steps + num_steps), CostFreeExecutor, log_stats=False)
    clocks: Clocks = {"schedule": [], "update": []}
    scheduler: Any = core.scheduler
    scheduler.schedule = functools.partial(timed, clocks, "schedule", scheduler.schedule)
    scheduler.update_from_output = functools.partial(timed, clocks, "update", scheduler.update_from_output)
    for request in _requests(point, num_warm_steps + num_steps):
        core.add_request(*core.preprocess_add_request(request))
    for _ in range(num_warm_steps):
        core.post_step(core.step_fn()[1])
    for times in clocks.values():
        times.clear()
    for _ in range(num_steps):
        core.post_step(core.step_fn()[1])
    core.shutdown()
    return {part: summary(times) for part, times in clocks.items()}


def _requests(point: _Point, num_steps: int) -> Iterator[EngineCoreRequest]:
    """Those of ``host_cost.py``."""
    running, turnover = point["running"], point["turnover"]
    for index in range(running + point["waiting"] + turnover * num_steps):
        params = SamplingParams(
            temperature=0,
            seed=1,
            max_tokens=output_len(running, turnover, index, num_steps),
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        yield EngineCoreRequest(
            request_id=f"request-{index}",
            prompt_token_ids=prompt_ids(index, point["context"]),
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(index),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )


def _config(model: str, point: _Point, num_steps: int) -> Any:
    length = point["context"] + 2 * BLOCK_SIZE + num_steps + 2
    Path(model, "config.json").write_text(json.dumps(MODEL | {"max_position_embeddings": length}), encoding="utf-8")
    return EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=length,
        max_num_seqs=point["running"],
        # A prompt goes through in one step here; what a step may hold changes nothing of what is measured after that.
        max_num_batched_tokens=max(point["running"], 2) * length,
        num_gpu_blocks_override=(point["running"] + 1) * (length // BLOCK_SIZE + 2),
        block_size=BLOCK_SIZE,
        async_scheduling=False,
        distributed_executor_backend=CostFreeExecutor,
    ).create_engine_config()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    main()
