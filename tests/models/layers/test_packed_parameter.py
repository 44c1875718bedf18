from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from corefw.builtins.ops.torch_ops import TorchOps
from corefw.errors import ModelFormatError
from corefw.interfaces.op_provider import OpRequest
from corefw.interfaces.quantization import WeightConverter
from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits
from corefw.models.layers.blocks import BlockTensor
from corefw.models.layers.context import BuildContext, TensorParallel
from corefw.models.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from corefw.models.layers.packed_parameter import PackedParameter
from corefw.models.layers.product import name_weights, prepare_weights
from corefw.models.layers.sharding import Split, split_evenly
from corefw.models.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from corefw.models.ops.binder import OpBinder
from corefw.models.ops.schema import get_op
from corefw.models.quantization import QuantizationPlan
from corefw.testing.paged_loop import cpu_build_context

WIDTH = 64


class _ReferenceOps(TorchOps):
    """Computes with blocks by the definitions of the ops."""

    name: ClassVar[str] = "reference"

    def supports(self, request: OpRequest) -> str | None:
        return None if request.layout else super().supports(request)

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        return get_op(request.op).reference if request.layout else super().kernel(request)


class _AsTheyCome(WeightConverter):
    def formats(self) -> Sequence[str]:
        return ("Q4_1", "Q8_0")


class _Halving(_AsTheyCome):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def convert(self, layer: str, weight: torch.Tensor | BlockTensor) -> torch.Tensor | BlockTensor:
        self.seen.append(layer)
        assert isinstance(weight, torch.Tensor)
        return quantised_8_bits(weight)


def make_build(converter: WeightConverter | None = None, tp: TensorParallel | None = None) -> BuildContext:
    binder = OpBinder([_ReferenceOps()], device_type="cpu", dtype="float32", batch_invariant=True)
    plan = QuantizationPlan(converter or _AsTheyCome(), frozenset({"Q4_1", "Q8_0"}))
    return replace(cpu_build_context(), binder=binder, quantization=plan, tp=tp or TensorParallel())


def whole_split(size: int) -> Split:
    return Split(0, size, size, size)


def load(layer: Any, **pieces: torch.Tensor | BlockTensor) -> None:
    for shard_id, piece in pieces.items():
        layer.weight.load(piece, "" if shard_id == "whole" else shard_id)


def merged(build: BuildContext) -> MergedColumnParallelLinear:
    return MergedColumnParallelLinear(WIDTH, {"gate": whole_split(6), "up": whole_split(10)}, bias=False, build=build)


def test_pieces_in_blocks_of_two_types_are_held_one_below_the_other() -> None:
    gate, up = quantised_4_bits(torch.randn(6, WIDTH)), quantised_8_bits(torch.randn(10, WIDTH))
    layer = merged(make_build())
    load(layer, up=up, gate=gate)
    prepare_weights(layer)
    rows = torch.randn(3, WIDTH)
    wanted = rows @ torch.cat([gate.dequantised(), up.dequantised()]).T
    torch.testing.assert_close(layer(rows), wanted)
    assert layer.weight.numel() == gate.rows.numel() + up.rows.numel()
    assert dict(layer.named_parameters()) == {}


def test_a_layer_with_a_plain_piece_is_plain() -> None:
    gate, up = quantised_4_bits(torch.randn(6, WIDTH)), torch.randn(10, WIDTH)
    layer = merged(make_build())
    load(layer, gate=gate, up=up)
    prepare_weights(layer)
    assert torch.equal(layer.weight, torch.cat([gate.dequantised(), up]))


def test_a_type_that_nobody_computes_is_dequantised() -> None:
    build = make_build()
    assert build.quantization is not None
    few = replace(build, quantization=replace(build.quantization, types=frozenset({"Q8_0"})))
    layer = merged(few)
    gate, up = quantised_4_bits(torch.randn(6, WIDTH)), quantised_8_bits(torch.randn(10, WIDTH))
    load(layer, gate=gate, up=up)
    prepare_weights(layer)
    assert torch.equal(layer.weight, torch.cat([gate.dequantised(), up.dequantised()]))


def test_a_plain_parameter_takes_blocks_by_their_values() -> None:
    build = replace(make_build(), quantization=None)
    layer = merged(build)
    gate, up = quantised_4_bits(torch.randn(6, WIDTH)), quantised_8_bits(torch.randn(10, WIDTH))
    load(layer, gate=gate, up=up)
    assert torch.equal(layer.weight.data, torch.cat([gate.dequantised(), up.dequantised()]))


def test_joined_pieces_come_apart() -> None:
    joined = quantised_8_bits(torch.randn(16, WIDTH))
    layer = merged(make_build())
    load(layer, whole=joined)
    prepare_weights(layer)
    rows = torch.randn(2, WIDTH)
    torch.testing.assert_close(layer(rows), rows @ joined.dequantised().T)


def test_embedding_and_head_share_one_weight_in_blocks() -> None:
    build = make_build()
    embedding = VocabParallelEmbedding(10, WIDTH, build)
    head = ParallelLMHead(10, WIDTH, build, tied=embedding)
    weight = quantised_8_bits(torch.randn(10, WIDTH))
    load(embedding, whole=weight)
    prepare_weights(torch.nn.ModuleList([embedding, head]))
    assert embedding.weight is head.weight
    ids, rows = torch.tensor([9, 0]), torch.randn(2, WIDTH)
    assert torch.equal(embedding(ids), weight.dequantised()[ids])
    torch.testing.assert_close(head(rows), rows @ weight.dequantised().T)


def test_a_converter_is_told_the_layer_and_gets_whole_rows() -> None:
    converter = _Halving()
    build = make_build(converter, TensorParallel(1, 2))
    layer = RowParallelLinear(split_evenly("inputs", 2 * WIDTH, build.tp), 5, bias=False, build=build)
    name_weights(torch.nn.ModuleDict({"down_proj": layer}))
    weight = torch.randn(5, 2 * WIDTH)
    load(layer, whole=weight)
    assert converter.seen == ["down_proj"]
    prepare_weights(layer)
    rows = torch.randn(3, WIDTH)
    wanted = rows @ quantised_8_bits(weight).dequantised()[:, WIDTH:].T
    torch.testing.assert_close(layer(rows), wanted)


def test_inputs_cut_between_blocks_stay_in_blocks_and_within_one_are_dequantised() -> None:
    weight = quantised_8_bits(torch.randn(5, 96), 32)
    for size, held_in_blocks in ((3, True), (2, False)):
        build = make_build(tp=TensorParallel(1, size))
        part = split_evenly("inputs", 96, build.tp)
        layer = RowParallelLinear(part, 5, bias=False, build=build)
        load(layer, whole=weight)
        prepare_weights(layer)
        own = weight.dequantised()[:, part.start : part.start + part.size]
        assert (layer.weight.dtype == torch.uint8) is held_in_blocks
        rows = torch.randn(2, part.size)
        torch.testing.assert_close(layer(rows), rows @ own.T)


def test_a_padded_vocabulary_has_rows_of_zeros() -> None:
    build = make_build(tp=TensorParallel(1, 2))
    weight = quantised_8_bits(torch.randn(7, WIDTH))
    embedding = VocabParallelEmbedding(7, WIDTH, build)
    load(embedding, whole=weight)
    settled = embedding.weight
    assert isinstance(settled, PackedParameter)
    prepare_weights(embedding)
    found = get_op("quantized_embedding").reference(torch.arange(4), embedding.weight, "Q8_0:4", WIDTH, torch.float32)
    assert torch.equal(found[:3], weight.dequantised()[4:])
    assert not found[3].any()


@pytest.mark.parametrize("shape", [(6, 32), (5, 64)])
def test_blocks_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ModelFormatError, match="has shape"):
        load(merged(make_build()), gate=quantised_8_bits(torch.randn(shape)))
