from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from corefw.builtins.model_loaders.safetensors import SafetensorsLoader
from corefw.builtins.model_sources.local import LocalDirectory
from corefw.interfaces.model_source import SourceOptions
from corefw.models import llama
from corefw.testing.paged_loop import PagedLoop, cpu_build_context
from tests.models.families import LLAMA3
from tests.models.threads import one_thread  # noqa: F401

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one KV head": {"num_key_value_heads": 1},
    "every head its own": {"num_key_value_heads": 6},
    "heads wider than the model": {"head_dim": 16},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "llama3 scaling": {"rope_parameters": LLAMA3},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
    "large base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
}


def reference(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()
    randomise(model)
    return model


def randomise(model: PreTrainedModel) -> None:
    """Norms and biases that aren't one and zero, so that leaving them out shows."""
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.add_(torch.randn_like(parameter) * 0.2)


def loop_over(model: PreTrainedModel, path: Path, block_size: int = 16) -> PagedLoop:
    """The same weights in our model, by way of files."""
    model.save_pretrained(path)
    files = LocalDirectory().resolve(str(path), SourceOptions(cache_dir=str(path / "cache")))
    info = SafetensorsLoader().read_info(files)
    build = cpu_build_context()
    ours = llama.LlamaForCausalLM(info, build)
    ours.load_weights(SafetensorsLoader().weights(info, torch.float32))
    return PagedLoop(ours, build, block_size=block_size)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 131, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def their_greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    tokens = list(ids)
    while len(tokens) < len(ids) + count:
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(ids) :]


@pytest.mark.parametrize("variant", VARIANTS)
def test_teacher_forced_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = reference(**VARIANTS[variant])
    loop = loop_over(model, tmp_path)
    ids = prompt(90)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(loop.step({0: ids})[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_free_running_greedy_tokens_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = reference(**VARIANTS[variant])
    loop = loop_over(model, tmp_path)
    for index, (length, chunk) in enumerate([(1, 1), (37, 10), (70, 64)]):
        ids = prompt(length, seed=index)
        assert loop.greedy(index, ids, 32, chunk=chunk) == their_greedy(model, ids, 32)


def test_a_sliding_window_is_that_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(**SIZES, head_dim=8, sliding_window=21, attn_implementation="eager")
    ).eval()
    randomise(model)
    loop = loop_over(model, tmp_path)
    ids = prompt(100)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(loop.step({0: ids})[0], expected, rtol=0, atol=1e-4)
    assert loop.greedy(1, ids, 16, chunk=33) == their_greedy(model, ids, 16)


def test_requests_in_one_batch_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = reference()
    loop = loop_over(model, tmp_path, block_size=8)
    texts = {index: prompt(5 + 13 * index, seed=index) for index in range(4)}
    results = loop.step(texts)
    for index, ids in texts.items():
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(results[index], expected, rtol=0, atol=1e-4)
