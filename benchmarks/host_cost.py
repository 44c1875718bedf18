"""What a step costs the host: scheduling, updating, preparing inputs, with a model that costs nothing.

    python benchmarks/host_cost.py --output-json host_cost.json --plot host_cost.svg
    python benchmarks/host_cost.py --vllm-python /path/to/venv/bin/python

All parts are the engine's own; only the model and the choice of tokens are left out. Requests decode for a number of
steps, their prompts of different lengths, so that each step fills some blocks; garbage collection is as in the engine.
One load after another varies how many run, how many wait, how long contexts are, and whether requests come and go. With
an interpreter that has vLLM, its scheduler does the same.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from host_cost_load import BLOCK_SIZE, Clocks, output_len, prompt_ids, summary, timed

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.engine.llm_engine import LLMEngine
from corefw.interfaces.attention import AttentionLayerSpec
from corefw.messages.codec import Codec
from corefw.messages.outputs import EngineCoreOutputs, ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import SchedulerOutput
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.futures import settled
from corefw.runtime.model_runner.attention_metadata import AttentionMetadataAssembly
from corefw.runtime.model_runner.batch_state import BatchState
from corefw.runtime.model_runner.input_preparation import InputPreparation, TableLayout
from corefw.runtime.model_runner.sampling_output import SamplingOutput
from corefw.runtime.sampling.sampler import Sampler, SamplerOutput
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import FakeExecutor

_STEP_TOKENS = 8192
_VOCAB_SIZE = 1000
PARTS = ("schedule", "update", "batch", "inputs", "metadata", "sampled", "rest", "encode")
SERIES = ("running", "waiting", "context", "turnover")
Measured = dict[str, list[dict[str, Any]]]
"""By what varies: a load, and what it cost whom."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine has to do while it is measured.

    Attributes:
        running: requests that decode.
        waiting: requests that don't fit into the batch.
        context: tokens of a prompt, at least.
        turnover: requests that end in a step, on average, and whose place a waiting one takes.
    """

    running: int
    waiting: int
    context: int
    turnover: int = 0


def loads(options: argparse.Namespace) -> dict[str, list[Load]]:
    """By what varies."""
    running, context = options.running, options.context
    return {
        "running": [Load(count, 10, context) for count in sorted({1, 16, 64, running, 2 * running})],
        "waiting": [Load(running, count, context) for count in options.waiting],
        "context": [Load(running, 10, length) for length in options.contexts],
        "turnover": [Load(running, 10, context, count) for count in (0, 1, 4)],
    }


class HostExecutor(FakeExecutor):
    """The worker's half of a step's work on the host; the model's half is left out."""

    clocks: Clocks

    def __init__(self, config: Any, plugins: PluginManager) -> None:
        super().__init__(config, plugins)
        limits = config.scheduler
        self._batch = BatchState(limits.max_num_seqs, 1)
        self._preparation = InputPreparation(
            torch.device("cpu"),
            max_num_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=config.max_model_len,
            groups=[TableLayout(BLOCK_SIZE)],
        )
        layer = AttentionLayerSpec(name="layer", num_heads=2, num_kv_heads=1, head_size=32, scale=1.0)
        self._assembly = AttentionMetadataAssembly(TorchAttention, [[layer]], [BLOCK_SIZE], limits.max_num_seqs)
        self._sampling = SamplingOutput(_SameToken(_VOCAB_SIZE))
        self.clocks = {part: [] for part in PARTS}

    def execute_model(self, scheduled: SchedulerOutput) -> Future[None]:
        part = functools.partial(timed, self.clocks)
        part("batch", self._batch.update, scheduled)
        self._sampling.update(scheduled)
        self._inputs = None
        if scheduled.total_num_scheduled_tokens:
            self._inputs = part("inputs", self._preparation.prepare, self._batch, scheduled.num_scheduled_tokens)
            part("metadata", self._assembly.assemble, self._inputs)
        return settled(lambda: None)

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        inputs, nothing = self._inputs, ModelRunnerOutput(request_ids=[], sampled_token_ids=[])
        if inputs is None:
            return settled(lambda: nothing)
        logits = torch.empty(len(inputs.sampled), 0) if len(inputs.sampled) else None
        told = timed(self.clocks, "sampled", self._sampling.finish, self._batch, inputs, logits, {})
        return settled(lambda: told)


class _SameToken(Sampler):
    """Chooses without looking."""

    def __call__(self, logits_RV: torch.Tensor, metadata: Any) -> SamplerOutput:
        count = len(metadata.seeds)
        assert count == len(logits_RV)
        return SamplerOutput(torch.full((count,), 7), torch.zeros(count, dtype=torch.bool))


def main() -> None:
    """Measure, print a table, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--waiting", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 8192, 32_768])
    parser.add_argument("--num-steps", type=int, default=300)
    parser.add_argument(
        "--series", nargs="+", choices=SERIES, default=SERIES, help="what varies; default: each in turn"
    )
    parser.add_argument("--vllm-python", help="interpreter that has vLLM")
    parser.add_argument("--output-json", type=Path, help="series that aren't measured stay in it")
    parser.add_argument("--plot", type=Path, help=".svg, .png …; needs matplotlib")
    options = parser.parse_args()
    vllm = Vllm(options.vllm_python) if options.vllm_python else None
    measured = {
        name: [_measured(load, options.num_steps, vllm) for load in series]
        for name, series in loads(options).items()
        if name in options.series
    }
    if vllm:
        vllm.close()
    if options.output_json:
        if options.output_json.exists():
            measured = json.loads(options.output_json.read_text(encoding="utf-8")) | measured
        options.output_json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(table(measured))
    if options.plot:
        draw(options.plot, measured)


def _measured(load: Load, num_steps: int, vllm: Vllm | None) -> dict[str, Any]:
    theirs = {"vllm": vllm.measure(load, num_steps)} if vllm else {}
    return asdict(load) | {"corefw": measure(load, num_steps)} | theirs


def measure(load: Load, num_steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step, by part: median and mean."""
    plugins = PluginManager.discover("")
    engine = LLMEngine(_config(load, num_steps, plugins), plugins)
    clocks: Clocks = engine.core._executor.clocks  # type: ignore[attr-defined]
    scheduler: Any = engine.core._scheduler
    scheduler.schedule = functools.partial(timed, clocks, "schedule", scheduler.schedule)
    scheduler.update = functools.partial(timed, clocks, "update", scheduler.update)
    codec = Codec(EngineCoreOutputs)
    for request in requests(load, num_steps):
        engine.add_request(request)
    num_started = 0
    while num_started < load.running:
        num_started += sum(output.num_cached_tokens is not None for output in engine.step())
    for _ in range(2 * BLOCK_SIZE):
        engine.step()
    for times in clocks.values():
        times.clear()
    for _ in range(num_steps):
        start_s = time.perf_counter()
        outputs = engine.step()
        whole_s = time.perf_counter() - start_s
        parts_s = sum(clocks[part][-1] for part in PARTS[:-2])
        clocks["rest"].append(whole_s - parts_s)
        timed(clocks, "encode", codec.encode, EngineCoreOutputs(outputs=outputs, stats=engine.stats))
    engine.shutdown()
    return {part: summary(times) for part, times in clocks.items()}


def requests(load: Load, num_steps: int) -> Iterator[EngineCoreRequest]:
    """Those that run, then those that wait."""
    num_steps_all = num_steps_before(load) + num_steps
    for index in range(load.running + load.waiting + load.turnover * num_steps_all):
        max_tokens = output_len(load.running, load.turnover, index, num_steps_all)
        yield EngineCoreRequest(
            request_id=f"request-{index}",
            prompt_ids=prompt_ids(index, load.context),
            params=SamplingParams(temperature=0, seed=1, max_tokens=max_tokens),
            arrival_s=index,
        )


def num_steps_before(load: Load) -> int:
    """Steps until all decode, at most, and until what is measured begins."""
    return 2 * load.running * (load.context + 2 * BLOCK_SIZE) // _STEP_TOKENS + 4 * BLOCK_SIZE


def _config(load: Load, num_steps: int, plugins: PluginManager) -> Any:
    length = load.context + 2 * BLOCK_SIZE + num_steps_before(load) + num_steps + 2
    return fake_config(
        distributed_executor_backend=f"{Path(__file__).stem}:{HostExecutor.__name__}",
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=(load.running + 1) * (length // BLOCK_SIZE + 2),
        max_num_seqs=load.running,
        max_num_batched_tokens=_STEP_TOKENS,
        max_position=length,
        vocab_size=_VOCAB_SIZE,
        resolved=plugins.resolved(),
    )


class Vllm:
    """The part that runs where vLLM is installed; made when its imports are done."""

    def __init__(self, python: str) -> None:
        script = str(Path(__file__).with_name("host_cost_vllm.py"))
        self._process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def measure(self, load: Load, num_steps: int) -> Any:
        """As ``measure`` does, of the scheduler alone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([asdict(load), num_steps]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        """The next of its lines that is JSON; vLLM has lines of its own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the interpreter with vLLM ended with status {self._process.wait()}")


def table(measured: Measured) -> str:
    """Markdown: medians in milliseconds, each part of a step a column."""
    head = [
        "varies",
        "running",
        "waiting",
        "context",
        "ending a step",
        *PARTS,
        "schedule + update",
        "input preparation",
    ]
    has_vllm = all("vllm" in point for series in measured.values() for point in series)
    if has_vllm:
        head += ["vLLM: schedule", "vLLM: update"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, series in measured.items():
        for point in series:
            cells = [name, *(str(point[field]) for field in Load.__dataclass_fields__)]
            cells += [f"{value:.3f}" for value in figures(point, has_vllm=has_vllm)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figures(point: dict[str, Any], *, has_vllm: bool) -> list[float]:
    """The table's numbers of one load."""
    own = {part: point["corefw"][part]["median_ms"] for part in PARTS}
    sums = [own["schedule"] + own["update"], own["batch"] + own["inputs"] + own["metadata"]]
    theirs = [point["vllm"][part]["median_ms"] for part in ("schedule", "update")] if has_vllm else []
    return [*own.values(), *sums, *theirs]


def draw(path: Path, measured: Measured) -> None:
    """What varies against the milliseconds of a step, one picture for each."""
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=(13, 4), layout="constrained")
    drawn = [name for name in SERIES[:3] if name in measured]
    for axis, name in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        series = measured[name]
        over = [point[name] for point in series]
        has_vllm = all("vllm" in point for point in series)
        rows = [figures(point, has_vllm=has_vllm) for point in series]
        first = len(PARTS)
        axis.plot(over, [row[first] for row in rows], "o-", label="schedule + update")
        axis.plot(over, [row[first + 1] for row in rows], "o-", label="input preparation")
        if has_vllm:
            axis.plot(over, [sum(row[first + 2 :]) for row in rows], "s--", label="vLLM: schedule + update")
        axis.set_xscale("log", base=2 if name != "waiting" else 10)
        axis.set_ylim(bottom=0)
        axis.set_xlabel({"running": "requests running", "waiting": "requests waiting"}.get(name, "tokens of context"))
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("ms a step")
    figure.axes[0].legend()
    figure.savefig(path)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
