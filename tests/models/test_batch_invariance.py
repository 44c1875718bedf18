from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.models.layers.context import BuildContext
from corefw.models.llama import LlamaForCausalLM
from corefw.testing.paged_loop import PagedLoop, cpu_build_context, model_info
from corefw.testing.tiny_models import llama_tensors, tiny_llama_config
from tests.models.random_steps import in_random_steps
from tests.models.threads import one_thread  # noqa: F401

TINY = tiny_llama_config(attention_bias=True)
DEMO_SHAPED = tiny_llama_config(
    hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
    num_hidden_layers=1, vocab_size=3001,
)  # fmt: skip


def built(config: dict[str, object]) -> tuple[LlamaForCausalLM, BuildContext]:
    build = cpu_build_context()
    model = LlamaForCausalLM(model_info(config), build)
    model.load_weights(llama_tensors(config).items())
    return model, build


MODELS = {"tiny": built(TINY), "demo-shaped": built(DEMO_SHAPED)}


def texts(lengths: list[int], seed: int) -> dict[int, list[int]]:
    chance = random.Random(seed)
    return {index: [chance.randrange(250) for _ in range(length)] for index, length in enumerate(lengths)}


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, derandomize=True, max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    block_size=st.sampled_from((8, 16, 32)),
)
def test_logits_have_the_same_bits_in_any_batch_and_any_chunks(
    name: str, lengths: list[int], seed: int, block_size: int
) -> None:
    model, build = MODELS[name]
    sequences = texts(lengths, seed)
    alone = {}
    for index, ids in sequences.items():
        alone[index] = PagedLoop(model, build).step({0: ids})[0]
    mixed = in_random_steps(PagedLoop(model, build, block_size=block_size), sequences, seed)
    for index in sequences:
        assert torch.equal(alone[index], mixed[index])


def test_with_two_threads_too() -> None:
    torch.set_num_threads(2)
    model, build = MODELS["demo-shaped"]
    sequences = texts([90, 3, 41], 9)
    together = PagedLoop(model, build).step(sequences)
    steps = in_random_steps(PagedLoop(model, build), sequences, 1)
    for index in sequences:
        assert torch.equal(together[index], steps[index])
