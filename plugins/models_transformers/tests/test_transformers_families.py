"""Families that have no model class in corefw, against transformers itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from corefw.testing.paged_loop import PagedLoop, cpu_build_context
from corefw_models_transformers.linear import prepare_linears, replace_linears
from plugins.models_transformers.tests.transformers_models import (
    FAMILIES,
    built,
    in_random_steps,
    prompts,
    reference,
    reference_tokens,
    write_family,
)

NUM_TOKENS = 10
# Where every family takes the same way through corefw, a few kinds stand for all: plain, windows, experts, learnt
# positions.
_STANDING_FOR_ALL = ("llama", "cohere2", "mixtral", "opt")
_QUICK_FIRST = [name if name in _STANDING_FOR_ALL else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    build = cpu_build_context()
    write_family(tmp_path, family)
    asked = prompts((1, 20, 50))
    loop = PagedLoop(built(tmp_path, build), build)
    told = [loop.greedy(index, ids, NUM_TOKENS, chunk=1 + 15 * index) for index, ids in enumerate(asked)]
    assert told == reference_tokens(tmp_path, asked, NUM_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    build = cpu_build_context()
    model = built(write_family(tmp_path, family), build)
    ids = prompts((60,))[0]
    with torch.no_grad():
        expected = reference(tmp_path)(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(PagedLoop(model, build).step({0: ids})[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", _QUICK_FIRST)
def test_bits_depend_neither_on_the_batch_nor_on_the_chunks(family: str, tmp_path: Path) -> None:
    build = cpu_build_context()
    model = built(write_family(tmp_path, family), build)
    asked = prompts()
    alone = [PagedLoop(model, build).step({0: ids})[0] for ids in asked]
    for seed, block_size in ((1, 8), (2, 32)):
        mixed = in_random_steps(PagedLoop(model, build, block_size=block_size), asked, seed)
        assert [torch.equal(one, other) for one, other in zip(alone, mixed, strict=True)] == [True] * len(asked)


@pytest.mark.parametrize("family", _QUICK_FIRST)
def test_bfloat16_says_nearly_the_same(family: str, tmp_path: Path) -> None:
    write_family(tmp_path, family)
    results = []
    for dtype in ("float32", "bfloat16"):
        build = cpu_build_context(dtype)
        results.append(PagedLoop(built(tmp_path, build), build).step({0: prompts()[0]})[0].float().flatten())
    assert torch.nn.functional.cosine_similarity(*results, dim=0) > 0.98


def test_weights_are_laid_out_but_those_that_something_else_reads() -> None:
    model = nn.ModuleDict({name: nn.Linear(4, 6) for name in ("own", "tied", "read")})
    model["table"] = nn.Embedding(6, 4)
    model["table"].weight = model["tied"].weight
    replace_linears(model, lambda *_: torch.nn.functional.linear)
    plain = {name: module.weight for name, module in model.items()}
    prepare_linears(model, torch.clone, plain={"read"})
    assert {name for name, module in model.items() if module.weight is not plain[name]} == {"own"}
    assert "weight" not in dict(model["own"].named_parameters())
