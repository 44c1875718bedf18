from __future__ import annotations

from pathlib import Path

import pytest
import torch

from corefw.models.layers.context import BuildContext
from corefw.testing.paged_loop import PagedLoop, cpu_build_context
from corefw.testing.tiny_models import TINY_FAMILIES, write_tiny
from tests.models.families import LONG, ours, prompt
from tests.models.random_steps import in_random_steps
from tests.models.ranks import Group
from tests.models.threads import one_thread  # noqa: F401

EXTRA = {"phi3": {"rope_parameters": LONG, "original_max_position_embeddings": 64}}


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_family_gives_the_same_bits_in_any_batch_and_any_chunks(family: str, tmp_path: Path) -> None:
    build = cpu_build_context()
    model = ours(write_tiny(tmp_path, family, **EXTRA.get(family, {})), build)
    sequences = {index: prompt(length, seed=index) for index, length in enumerate((90, 1, 47, 23))}
    alone = {index: PagedLoop(model, build).step({0: ids})[0] for index, ids in sequences.items()}
    for seed, block_size in ((1, 8), (2, 32)):
        mixed = in_random_steps(PagedLoop(model, build, block_size=block_size), sequences, seed)
        for index in sequences:
            assert torch.equal(alone[index], mixed[index])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_sharded_family_equals_the_whole_one(family: str, size: int, tmp_path: Path) -> None:
    write_tiny(
        tmp_path, family, hidden_size=36, num_attention_heads=9, num_key_value_heads=3, head_dim=8,
        intermediate_size=83, vocab_size=260,
    )  # fmt: skip
    ids = prompt(40)

    def work(build: BuildContext) -> tuple[torch.Tensor, list[int]]:
        loop = PagedLoop(ours(tmp_path, build), build)
        return loop.step({0: ids})[0], loop.greedy(1, ids, 12)

    expected, tokens = work(cpu_build_context())
    for logits, generated in Group(size).run(work):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)
        assert generated == tokens
