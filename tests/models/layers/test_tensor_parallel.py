from __future__ import annotations

import pytest
import torch
from torch import nn

from corefw.errors import ModelFormatError
from corefw.models.layers.context import BuildContext, TensorParallel
from corefw.models.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from corefw.models.layers.parameter import Parameter
from corefw.models.layers.sharding import split_evenly
from corefw.models.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from corefw.models.llama import LlamaForCausalLM
from corefw.testing.paged_loop import PagedLoop, cpu_build_context, model_info
from corefw.testing.tiny_models import llama_tensors, tiny_llama_config
from tests.models.ranks import Group


def load(layer: nn.Module, **tensors: torch.Tensor | dict[str, torch.Tensor]) -> nn.Module:
    for name, tensor in tensors.items():
        parameter = getattr(layer, name)
        for shard_id, piece in tensor.items() if isinstance(tensor, dict) else [("", tensor)]:
            parameter.load(piece, shard_id)
    return layer


@pytest.mark.parametrize("size", [2, 3])
def test_a_column_then_a_row_layer_equal_the_whole_ones_also_when_uneven(size: int) -> None:
    up, down, bias, x = torch.randn(17, 10), torch.randn(10, 17), torch.randn(10), torch.randn(5, 10)

    def work(build: BuildContext) -> torch.Tensor:
        inner = split_evenly("inner", 17, build.tp)
        first = load(ColumnParallelLinear(10, inner, bias=False, build=build), weight=up)
        second = load(RowParallelLinear(inner, 10, bias=True, build=build), weight=down, bias=bias)
        return second(first(x))

    expected = x @ up.t() @ down.t() + bias
    for result in Group(size).run(work):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_merged_outputs_are_cut_each_by_itself() -> None:
    gate, up = torch.randn(7, 4), torch.randn(7, 4)

    def work(build: BuildContext) -> torch.Tensor:
        inner = split_evenly("inner", 7, build.tp)
        layer = MergedColumnParallelLinear(4, {"gate": inner, "up": inner}, bias=False, build=build)
        return load(layer, weight={"up": up, "gate": gate}).weight

    first, second = Group(2).run(work)
    assert torch.equal(first, torch.cat((gate[:4], up[:4])))
    assert torch.equal(second, torch.cat((gate[4:], up[4:])))


def test_nine_query_and_three_kv_heads_over_two_ranks() -> None:
    pieces = {"q": torch.randn(9 * 4, 6), "k": torch.randn(3 * 4, 6), "v": torch.randn(3 * 4, 6)}

    def work(build: BuildContext) -> QKVParallelLinear:
        layer = QKVParallelLinear(6, 9, 3, 4, bias=False, build=build)
        load(layer, weight=pieces)
        return layer

    ranks = Group(2).run(work)
    assert [(rank.num_heads, rank.num_kv_heads) for rank in ranks] == [(6, 2), (3, 1)]
    parts = [rank.split(rank.weight.t()) for rank in ranks]
    for place, name in enumerate("qkv"):
        assert torch.equal(torch.cat([part[place] for part in parts], -1).t(), pieces[name])


@pytest.mark.parametrize(("vocab", "size"), [(11, 2), (11, 3), (5, 4)])
def test_vocabulary_ends_equal_the_whole_ones(vocab: int, size: int) -> None:
    table, ids, hidden = torch.randn(vocab, 6), torch.arange(vocab), torch.randn(3, 6)

    def work(build: BuildContext) -> tuple[torch.Tensor, torch.Tensor]:
        embedding = VocabParallelEmbedding(vocab, 6, build)
        head = ParallelLMHead(vocab, 6, build, tied=embedding)
        load(embedding, weight=table)
        return embedding(ids), head(hidden)

    for embedded, logits in Group(size).run(work):
        assert torch.equal(embedded, table)
        assert logits.shape == (3, vocab)
        torch.testing.assert_close(logits, hidden @ table.t())


@pytest.mark.parametrize("size", [2, 3])
def test_shards_of_all_ranks_cover_every_element_exactly_once(size: int) -> None:
    config = tiny_llama_config(
        hidden_size=36, num_attention_heads=9, num_key_value_heads=3, head_dim=4, intermediate_size=23, vocab_size=50,
        attention_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    numbered: dict[str, torch.Tensor] = {}
    next_number = 1
    for name, tensor in llama_tensors(config).items():
        numbered[name] = torch.arange(next_number, next_number + tensor.numel()).view(tensor.shape).float()
        next_number += tensor.numel()
    assert next_number < 2**24  # exact in float32

    seen: dict[str, list[torch.Tensor]] = {}
    for rank in range(size):
        model = LlamaForCausalLM(model_info(config), cpu_build_context(tp=TensorParallel(rank, size)))
        model.load_weights(numbered.items())
        for name, parameter in model.named_parameters():
            replicated = "norm" in name or name.endswith("o_proj.bias")
            if not (replicated and rank):
                seen.setdefault(name, []).append(parameter.flatten())
    values = torch.cat([part for parts in seen.values() for part in parts])
    values = values[values != 0].sort().values  # zeros pad the vocabulary
    assert torch.equal(values, torch.arange(1, next_number).float())


@pytest.mark.parametrize(("num_kv_heads", "size"), [(3, 2), (3, 3), (1, 2), (3, 5)])
def test_a_sharded_model_equals_the_whole_one(num_kv_heads: int, size: int) -> None:
    config = tiny_llama_config(
        num_attention_heads=9, num_key_value_heads=num_kv_heads, intermediate_size=83, vocab_size=101,
        attention_bias=True,
    )  # fmt: skip
    weights = llama_tensors(config)
    prompt = [(7 * i) % 101 for i in range(40)]

    def work(build: BuildContext) -> tuple[torch.Tensor, list[int]]:
        model = LlamaForCausalLM(model_info(config), build)
        model.load_weights(weights.items())
        loop = PagedLoop(model, build)
        return loop.step({0: prompt})[0], loop.greedy(1, prompt, 16)

    (expected, tokens) = work(cpu_build_context())
    for logits, generated in Group(size).run(work):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)
        assert generated == tokens


def test_a_parameter_refuses_what_does_not_belong() -> None:
    build = cpu_build_context()
    layer = QKVParallelLinear(6, 2, 1, 4, bias=False, build=build)
    weight = layer.weight
    assert isinstance(weight, Parameter)
    assert weight.missing() == ("q", "k", "v")
    with pytest.raises(ModelFormatError, match=r"shape \[8, 5\].*\[8, 6\]"):
        weight.load(torch.zeros(8, 5), "q")
    with pytest.raises(ModelFormatError, match="no shard 'x'"):
        weight.load(torch.zeros(8, 6), "x")
    weight.load(torch.zeros(8, 6), "q")
    with pytest.raises(ModelFormatError, match="twice"):
        weight.load(torch.zeros(8, 6), "q")
    assert weight.missing() == ("k", "v")


def test_joined_pieces_are_cut_like_single_ones() -> None:
    pieces = {"q": torch.randn(9 * 4, 6), "k": torch.randn(3 * 4, 6), "v": torch.randn(3 * 4, 6)}

    def work(build: BuildContext) -> tuple[torch.Tensor, torch.Tensor]:
        single = load(QKVParallelLinear(6, 9, 3, 4, bias=False, build=build), weight=pieces)
        joined = load(QKVParallelLinear(6, 9, 3, 4, bias=False, build=build), weight=torch.cat(list(pieces.values())))
        return single.weight, joined.weight

    for single, joined in Group(2).run(work):
        assert torch.equal(single, joined)


def test_joined_pieces_of_another_size_or_after_a_single_one_are_refused() -> None:
    weight = QKVParallelLinear(6, 2, 1, 4, bias=False, build=cpu_build_context()).weight
    with pytest.raises(ModelFormatError, match=r"shape \[15, 6\].*\[16, 6\]"):
        weight.load(torch.zeros(15, 6))
    weight.load(torch.zeros(4, 6), "k")
    with pytest.raises(ModelFormatError, match="twice"):
        weight.load(torch.zeros(16, 6))


def test_a_capped_head_caps_on_every_rank() -> None:
    table, hidden = torch.randn(11, 6) * 9, torch.randn(3, 6)

    def work(build: BuildContext) -> torch.Tensor:
        return load(ParallelLMHead(11, 6, build, tied=None, soft_cap=5.0), weight=table)(hidden)

    for logits in Group(2).run(work):
        torch.testing.assert_close(logits, 5 * torch.tanh(hidden @ table.t() / 5))
