"""The part of ``process_border.py`` that runs where vLLM is installed; prints its rates as the last line, JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

_NUM_LAYERS = 2
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": _NUM_LAYERS,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
}


class CostFreeExecutor(Executor):
    """Gives each scheduled request a token."""

    def _init_executor(self) -> None:
        pass

    def get_kv_cache_specs(self) -> Any:
        spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
        return [{f"model.layers.{index}.self_attn.attn": spec for index in range(_NUM_LAYERS)}]

    def determine_available_memory(self) -> list[int]:
        return [2**30]

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        answers = {"get_supported_tasks": ("generate",), "get_supported_kv_cache_layouts": ["NHD", "HND"]}
        return [answers.get(method)]

    def compile_or_warm_up_model(self) -> None:
        pass

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        ids = list(scheduler_output.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[[7]] * len(ids),
        )
        if not non_block:
            return output
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future

    def check_health(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("num-requests", "prompt-len", "output-len", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        config = _config(model, options)
        rates = {
            "vLLM in process": _in_process(config, options),
            "vLLM through the border": asyncio.run(_through_the_border(config, options)),
        }
    print(json.dumps(rates), flush=True)


def _config(model: str, options: argparse.Namespace) -> Any:
    arguments = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=options.prompt_len + options.output_len,
        max_num_seqs=options.num_requests,
        max_num_batched_tokens=max(options.num_requests * options.prompt_len, options.prompt_len + options.output_len),
        block_size=16,
        async_scheduling=False,
        distributed_executor_backend=CostFreeExecutor,
    )
    return arguments.create_engine_config()


def _in_process(config: Any, options: argparse.Namespace) -> list[Any]:
    core = EngineCore(config, CostFreeExecutor, log_stats=False)
    rates = []
    for number in range(options.rounds + 1):
        start_s, start_cpu_s = time.perf_counter(), _cpu_s()
        for request in _requests(options, number):
            core.add_request(*core.preprocess_add_request(request))
        num_tokens = num_ended = 0
        while num_ended < options.num_requests:
            outputs, executed = core.step_fn()
            core.post_step(executed)
            for one in outputs.values():
                num_tokens, num_ended = _counted(one.outputs, num_tokens, num_ended)
        rates.append(_round(options, num_tokens, time.perf_counter() - start_s, _cpu_s() - start_cpu_s))
    core.shutdown()
    return rates[1:]


async def _through_the_border(config: Any, options: argparse.Namespace) -> list[Any]:
    client = EngineCoreClient.make_async_mp_client(config, CostFreeExecutor, False)
    rates = []
    for number in range(options.rounds + 1):
        start_s, start_cpu_s = time.perf_counter(), _cpu_s()
        for request in _requests(options, number):
            await client.add_request_async(request)
        num_tokens = num_ended = 0
        while num_ended < options.num_requests:
            num_tokens, num_ended = _counted((await client.get_output_async()).outputs, num_tokens, num_ended)
        rates.append(_round(options, num_tokens, time.perf_counter() - start_s, _cpu_s() - start_cpu_s))
    client.shutdown()
    return rates[1:]


def _counted(outputs: Any, num_tokens: int, num_ended: int) -> tuple[int, int]:
    for output in outputs:
        num_tokens += len(output.new_token_ids)
        num_ended += output.finish_reason is not None
    return num_tokens, num_ended


def _requests(options: argparse.Namespace, number: int) -> list[EngineCoreRequest]:
    params = SamplingParams(
        temperature=0, seed=1, max_tokens=options.output_len, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    return [
        EngineCoreRequest(
            request_id=f"{number}-{index}",
            prompt_token_ids=[1 + (index + 64 * number + position) % 997 for position in range(options.prompt_len)],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        for index in range(options.num_requests)
    ]


def _round(options: argparse.Namespace, num_tokens: int, elapsed_s: float, cpu_time_s: float) -> tuple[float, float]:
    assert num_tokens == options.num_requests * options.output_len, num_tokens
    return round(options.output_len / elapsed_s, 1), round(cpu_time_s / options.output_len * 1000, 4)


def _cpu_s() -> float:
    """Of this process and its children."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    main()
