"""Stages of a pipeline, and steps put together ahead, say what one process says that makes a step at a time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from corefw.config.args import UserArgs
from corefw.engine.llm_engine import LLMEngine
from corefw.engine.resolver import resolve_config
from corefw.errors import ConfigError, ModelFormatError
from corefw.messages.arrays import Array
from corefw.messages.outputs import EngineCoreOutput, FinishReason
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.models.layers.context import Stage
from corefw.plugin_system.manager import PluginManager
from corefw.testing.tiny_models import write_tiny, write_tiny_llama
from tests.models.threads import one_thread
from tests.runtime.staged_executor import STAGED, StagedExecutor

__all__ = ["one_thread"]

NUM_TOKENS = 12


def config(path: Path, plugins: PluginManager, **settings: Any) -> Any:
    defaults = {
        "model": str(path),
        "dtype": "float32",
        "max_num_batched_tokens": 16,
        "max_num_seqs": 6,
        "block_size": 4,
        "enable_prompt_embeds": True,
    }
    return resolve_config(UserArgs.from_keywords(**(defaults | settings)), plugins)


def requests(vocab_size: int = 250) -> list[EngineCoreRequest]:
    """Greedy and seeded ones, longer than a step, with everything that goes along with tokens."""
    choose = random.Random(7)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2, "min_tokens": 3},
        {"temperature": 0.0, "stop_token_ids": tuple(range(0, 250, 3))},
    ]
    return [
        EngineCoreRequest(
            request_id=f"r{index}",
            prompt_ids=[choose.randrange(vocab_size) for _ in range(choose.choice([1, 3, 9, 24]))],
            params=SamplingParams(**{"max_tokens": NUM_TOKENS, "seed": index, **kinds[index % 4]}),
        )
        for index in range(9)
    ]


def run(engine: LLMEngine, added: list[EngineCoreRequest]) -> dict[str, list[EngineCoreOutput]]:
    for request in added:
        engine.add_request(request)
    outputs: dict[str, list[EngineCoreOutput]] = {request.request_id: [] for request in added}
    while engine.has_work():
        for output in engine.step():
            outputs[output.request_id].append(output)
    return outputs


def told(outputs: list[EngineCoreOutput]) -> Any:
    """All but times, and where pieces were cut."""
    end = outputs[-1]
    logprobs = [one for output in outputs for one in output.logprobs or []]
    prompt = [output.prompt_logprobs.token_ids.to_numpy().tolist() for output in outputs if output.prompt_logprobs]
    tokens = [token for output in outputs for token in output.new_token_ids]
    ranks = [(one.token_ids, one.rank) for one in logprobs]
    return tokens, ranks, prompt, end.finish_reason, end.stop_reason, end.error


def answers(path: Path, plugins: PluginManager, added: list[EngineCoreRequest], **settings: Any) -> dict[str, Any]:
    engine = LLMEngine(config(path, plugins, **settings), plugins)
    outputs = {name: told(own) for name, own in run(engine, added).items()}
    assert engine.stats is not None
    assert (engine.stats.num_running, engine.stats.kv_usage) == (0, 0.0)
    engine.shutdown()
    return outputs


# One full layer among those with a window: KV-cache groups of one layer, most of which only one stage has.
APART = {"num_hidden_layers": 4, "layer_types": [*["sliding_attention"] * 3, "full_attention"]}


@pytest.mark.parametrize(("family", "overrides"), [("qwen2", {}), ("gemma3_text", {}), ("gemma3_text", APART)])
def test_stages_say_what_one_process_says(
    family: str, overrides: dict[str, Any], tmp_path: Path, plugins: PluginManager
) -> None:
    path = write_tiny(tmp_path / family, family, **overrides)
    expected = answers(path, plugins, requests())
    staged = answers(path, plugins, requests(), pipeline_parallel_size=2, distributed_executor_backend=STAGED)
    assert staged == expected
    assert StagedExecutor.latest.max_pending == 2, "both stages work at the same time"
    assert all(link.empty() for link in StagedExecutor.latest.links)


AHEAD = {
    "stages": {"pipeline_parallel_size": 3, "distributed_executor_backend": STAGED},
    "async": {"async_scheduling": True, "distributed_executor_backend": STAGED},
    "async in one thread": {"async_scheduling": True},
}


@pytest.mark.parametrize("way", sorted(AHEAD))
def test_tokens_are_the_same_where_requests_have_to_give_way(
    way: str, model: Path, expected: dict[str, Any], plugins: PluginManager
) -> None:
    few = {"num_gpu_blocks_override": 20, "max_model_len": 48}
    assert answers(model, plugins, requests(), **few, **AHEAD[way]) == expected


@pytest.mark.parametrize("way", sorted(AHEAD))
def test_a_request_that_goes_while_steps_are_on_their_way_leaves_the_others_whole(
    way: str, model: Path, expected: dict[str, Any], plugins: PluginManager
) -> None:
    choose = random.Random(3)
    engine = LLMEngine(config(model, plugins, num_gpu_blocks_override=24, max_model_len=48, **AHEAD[way]), plugins)
    for round_ in range(2):
        outputs: dict[str, list[EngineCoreOutput]] = {}
        for request in requests():
            engine.add_request(request)
        gone: set[str] = set()
        while engine.has_work():
            if choose.random() < 0.3:
                name = f"r{choose.randrange(9)}"
                gone.add(name)
                (engine.abort if round_ % 2 else engine.core.abort_soon)([name])
            for output in engine.step():
                outputs.setdefault(output.request_id, []).append(output)
        for name, own in outputs.items():
            if own[-1].finish_reason is FinishReason.ABORT:
                tokens = told(own)[0]
                assert name in gone
                assert tokens == expected[name][0][: len(tokens)]
            else:
                assert told(own) == expected[name]
    assert engine.stats is not None
    assert engine.stats.kv_usage == 0
    assert engine.core.call("reset_prefix_cache") is True
    engine.shutdown()


@pytest.mark.parametrize("way", ["stages", "async"])
def test_a_step_that_fails_costs_its_own_requests_alone(
    way: str, model: Path, expected: dict[str, Any], plugins: PluginManager
) -> None:
    engine = LLMEngine(config(model, plugins, **AHEAD[way]), plugins)
    for worker in StagedExecutor.latest.workers[:1]:
        _fail_once(worker, at_step=6)
    outputs = {name: told(own) for name, own in run(engine, requests()).items()}
    failed = {name for name, answer in outputs.items() if answer[3] is FinishReason.ERROR}
    assert 0 < len(failed) < 9
    assert {name: answer for name, answer in outputs.items() if name not in failed} == {
        name: answer for name, answer in expected.items() if name not in failed
    }
    assert all(link.empty() for link in StagedExecutor.latest.links)
    again = {name: told(own) for name, own in run(engine, requests()).items()}
    assert again == expected
    engine.shutdown()


def _fail_once(worker: Any, at_step: int) -> None:
    run_layers, seen = worker._model.layers.values, [0]

    def fail() -> Any:
        seen[0] += 1
        if seen[0] == at_step:
            raise ValueError("told to fail")
        return run_layers()

    worker._model.layers.values = fail


def test_prompts_given_as_embeddings_enter_the_first_stage(model: Path, plugins: PluginManager) -> None:
    values = torch.randn(5, 48, generator=torch.Generator().manual_seed(1))
    span = EmbeddingSpan(offset=1, values=Array.from_numpy(values.numpy()))
    request = EngineCoreRequest(
        request_id="e",
        prompt_ids=[3, 0, 0, 0, 0, 0, 7],
        prompt_embeds=(span,),
        params=SamplingParams(temperature=0.0, seed=0, max_tokens=NUM_TOKENS),
    )
    expected = answers(model, plugins, [request])
    assert answers(model, plugins, [request], **AHEAD["stages"]) == expected
    assert expected["e"][3] is not FinishReason.ERROR


def test_a_checkpoint_that_lacks_a_tensor_is_noticed_by_the_stage_that_needs_it(
    tmp_path: Path, plugins: PluginManager
) -> None:
    from safetensors.torch import load_file, save_file

    path = write_tiny_llama(tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    for name in ("model.layers.2.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"):
        left = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(left, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelFormatError, match=rf"misses 1 tensor\(s\): {name}"):
            LLMEngine(config(path, plugins, **AHEAD["stages"]), plugins)
    extra = {**tensors, "model.layers.3.mlp.up_proj.weight": torch.zeros(1)}
    save_file(extra, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"unexpected 1 tensor\(s\): model.layers.3"):
        LLMEngine(config(path, plugins, **AHEAD["stages"]), plugins)


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(8, [2, 2, 2, 2]), (9, [2, 2, 3, 2]), (10, [2, 3, 3, 2]), (11, [3, 3, 3, 2]), (4, [1] * 4)],
)
def test_layers_that_are_left_over_go_to_the_middle(num_layers: int, sizes: list[int]) -> None:
    parts = [Stage(rank, 4).layers(num_layers) for rank in range(4)]
    assert [len(part) for part in parts] == sizes
    assert [index for part in parts for index in part] == list(range(num_layers))


def test_more_stages_than_layers_are_refused(model: Path, plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 4 is more than the model's 3 layers"):
        LLMEngine(config(model, plugins, pipeline_parallel_size=4, distributed_executor_backend=STAGED), plugins)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"), ({"kv_connector": "x"}, "--kv-connector")],
)
def test_what_async_scheduling_cant_go_with_is_refused(
    setting: dict[str, Any], reason: str, model: Path, plugins: PluginManager
) -> None:
    with pytest.raises(ConfigError, match=f"--async-scheduling.*{reason}"):
        config(model, plugins, async_scheduling=True, **setting)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("stages") / "llama")


@pytest.fixture(scope="module")
def expected(model: Path, plugins: PluginManager) -> dict[str, Any]:
    return answers(model, plugins, requests())
