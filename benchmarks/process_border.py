"""What the border between front end and engine core costs: steps per second with a model that costs nothing.

    python benchmarks/process_border.py --output-json border.json
    python benchmarks/process_border.py --vllm-python /path/to/venv/bin/python

64 requests run at once, each to the same length; every step gives each of them a token, and every output is received. A
first round isn't counted. With an interpreter that has vLLM, its engine core does the same with an executor like ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corefw.engine.llm_engine import LLMEngine
from corefw.engine.process import CoreProcess
from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import FakeExecutor

_TOKEN = [7]
Round = tuple[float, float]
"""Steps per second, and milliseconds of CPU time a step."""


@dataclass(frozen=True, slots=True)
class Load:
    """The script that every engine plays."""

    num_requests: int
    prompt_len: int
    output_len: int

    def prompt(self, index: int, round_number: int) -> list[int]:
        """Prompts share nothing."""
        return [1 + (index + 64 * round_number + position) % 997 for position in range(self.prompt_len)]


class CostFreeExecutor(FakeExecutor):
    """Gives each scheduled request a token: prompts go through in one step here."""

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        self._scheduled = scheduled
        return _done(None)

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        scheduled, self._scheduled = self._scheduled, None
        assert scheduled is not None
        ids = list(scheduled.num_scheduled_tokens)
        return _done(ModelRunnerOutput(request_ids=ids, sampled_token_ids=[_TOKEN] * len(ids)))


def main() -> None:
    """Measure, print a table, keep every round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vllm-python", help="interpreter that has vLLM")
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()
    load = Load(options.num_requests, options.prompt_len, options.output_len)
    rates = {
        "corefw in process": in_process(load, options.rounds),
        "corefw through the border": asyncio.run(through_the_border(load, options.rounds)),
    }
    if options.vllm_python:
        rates |= _vllm(options)
    print("| engine | best round, steps/s | CPU time a step, ms |\n|---|---|---|")
    for name, rounds in rates.items():
        print(f"| {name} | {max(rate for rate, _ in rounds):.0f} | {min(cost for _, cost in rounds):.2f} |")
    if options.output_json:
        result = {"load": vars(options) | {"output_json": None, "vllm_python": None}, "rounds": rates}
        options.output_json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def in_process(load: Load, rounds: int) -> list[Round]:
    """Each round with the core stepped by its caller."""
    plugins = PluginManager.discover("")
    engine = LLMEngine(_config(load, plugins), plugins)
    rates = []
    for number in range(rounds + 1):
        start_s, start_cpu_s = time.perf_counter(), cpu_s()
        for request in _requests(load, number):
            engine.add_request(request)
        num_tokens = 0
        while engine.has_work():
            num_tokens += sum(len(output.new_token_ids) for output in engine.step())
        rates.append(_round(load, num_tokens, time.perf_counter() - start_s, cpu_s() - start_cpu_s))
    engine.shutdown()
    return rates[1:]


async def through_the_border(load: Load, rounds: int) -> list[Round]:
    """The same with the core in a process of its own."""
    plugins = PluginManager.discover("")
    process = CoreProcess.spawn(preload=())
    process.configure(_config(load, plugins))
    client = await process.connect()
    rates = []
    for number in range(rounds + 1):
        start_s, start_cpu_s = time.perf_counter(), cpu_s(process.pid)
        for request in _requests(load, number):
            client.add_request(request)
        num_tokens = num_ended = 0
        while num_ended < load.num_requests:
            for output in (await client.next_outputs()).outputs:
                num_tokens += len(output.new_token_ids)
                num_ended += output.finish_reason is not None
        rates.append(_round(load, num_tokens, time.perf_counter() - start_s, cpu_s(process.pid) - start_cpu_s))
    await client.stop(5)
    return rates[1:]


def _vllm(options: argparse.Namespace) -> dict[str, list[Round]]:
    script = Path(__file__).with_name("process_border_vllm.py")
    arguments = [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in _SHARED]
    done = subprocess.run(
        [options.vllm_python, str(script), *arguments], stdout=subprocess.PIPE, text=True, check=True, env=os.environ
    )
    rates: dict[str, list[Round]] = json.loads(done.stdout.splitlines()[-1])
    return rates


_SHARED = ("num-requests", "prompt-len", "output-len", "rounds")


def _config(load: Load, plugins: PluginManager) -> Any:
    length = load.prompt_len + load.output_len
    return fake_config(
        distributed_executor_backend=f"{Path(__file__).stem}:{CostFreeExecutor.__name__}",
        block_size=16,
        num_gpu_blocks_override=load.num_requests * (length // 16 + 2),
        max_num_seqs=load.num_requests,
        max_num_batched_tokens=load.num_requests * load.prompt_len,
        max_position=length,
        resolved=plugins.resolved(),
    )


def _requests(load: Load, number: int) -> Sequence[EngineCoreRequest]:
    params = SamplingParams(temperature=0, seed=1, max_tokens=load.output_len, ignore_eos=True)
    return [
        EngineCoreRequest(request_id=f"{number}-{index}", prompt_ids=load.prompt(index, number), params=params)
        for index in range(load.num_requests)
    ]


def _round(load: Load, num_tokens: int, elapsed_s: float, cpu_time_s: float) -> Round:
    assert num_tokens == load.num_requests * load.output_len, num_tokens
    return round(load.output_len / elapsed_s, 1), round(cpu_time_s / load.output_len * 1000, 4)


def cpu_s(*children: int) -> float:
    """CPU time of this process and some others, which says what a step costs on a machine that has other work, too."""
    fields = (Path(f"/proc/{child}/stat").read_text("utf-8").rpartition(")")[2].split() for child in children)
    ticks = sum(int(each[11]) + int(each[12]) for each in fields)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
