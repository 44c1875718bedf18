from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from corefw.builtins.attention.torch_attention import TorchAttention
from corefw.builtins.ops.torch_ops import TorchOps
from corefw.interfaces.op_provider import OpRequest
from corefw.models.layers.context import BuildContext, TensorParallel
from corefw.models.layers.linear import MergedColumnParallelLinear
from corefw.models.layers.product import prepare_weights
from corefw.models.layers.sharding import Split
from corefw.models.layers.vocabulary import ParallelLMHead, VocabParallelEmbedding
from corefw.models.ops.binder import OpBinder


class _TransposingOps(TorchOps):
    """Keeps prepared weights as [in, out], and tells by a flag that it has made them."""

    name: ClassVar[str] = "transposing"
    rank: ClassVar[int] = 9

    def prepare_weight(self, request: OpRequest, weight: torch.Tensor) -> torch.Tensor:
        assert request.shape == {"in_features": weight.shape[1], "out_features": weight.shape[0]}
        return weight.T.clone()

    def kernel(self, request: OpRequest):  # type: ignore[no-untyped-def]
        plain = super().kernel(request)

        def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            is_prepared = weight.shape[0] == request.shape["in_features"]
            out: torch.Tensor = plain(input, weight.T.contiguous() if is_prepared else weight, bias)
            return out

        return linear if request.op == "linear" else plain


@pytest.fixture
def build() -> BuildContext:
    return BuildContext(
        device=torch.device("cpu"),
        dtype=torch.float32,
        dtype_name="float32",
        batch_invariant=True,
        binder=OpBinder([_TransposingOps()], device_type="cpu", dtype="float32", batch_invariant=True),
        tp=TensorParallel(),
        attention_backend=TorchAttention,
        max_model_len=16,
    )


def test_a_layer_holds_what_its_kernel_s_provider_made_of_its_weight(build: BuildContext) -> None:
    layer = MergedColumnParallelLinear(4, {"": Split(0, 6, 6, 6)}, bias=False, build=build)
    layer.weight.data.copy_(torch.arange(24.0).view(6, 4))
    rows = torch.arange(8.0).view(2, 4)
    before = layer(rows)
    prepare_weights(layer)
    assert layer.weight.shape == (4, 6)
    assert dict(layer.named_parameters()) == {}  # the plain weight is let go
    assert torch.equal(layer(rows), before)


def test_a_head_gets_a_prepared_weight_beside_the_embeddings_plain_one(build: BuildContext) -> None:
    embedding = VocabParallelEmbedding(10, 4, build)
    embedding.weight.data.copy_(torch.arange(40.0).view(10, 4))
    tied = ParallelLMHead(10, 4, build, tied=embedding)
    rows, ids = torch.arange(8.0).view(2, 4), torch.tensor([0, 9])
    logits, vectors = tied(rows), embedding(ids)
    prepare_weights(torch.nn.ModuleList([embedding, tied]))
    assert (embedding.weight.shape, tied.weight.shape) == ((10, 4), (4, 10))
    assert torch.equal(tied(rows), logits)
    assert torch.equal(embedding(ids), vectors)


class _ReadingOps(_TransposingOps):
    """Its embedding reads what was prepared for the product."""

    name: ClassVar[str] = "reading"

    def kernel(self, request: OpRequest):  # type: ignore[no-untyped-def]
        def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return weight.T[ids] if weight.shape[0] == 4 else weight[ids]

        return embedding if request.op == "embedding" else super().kernel(request)

    def embeds_prepared(self, request: OpRequest) -> bool:
        return request.shape["in_features"] == 4


def _tied(ops: TorchOps, others: list[TorchOps], width: int, build: BuildContext) -> list[torch.Tensor]:
    """Weights of embedding and head after they were prepared; what they give must stay."""
    binder = OpBinder([ops, *others], device_type="cpu", dtype="float32", batch_invariant=True)
    build = replace(build, binder=binder)
    embedding = VocabParallelEmbedding(10, width, build)
    embedding.weight.data.copy_(torch.arange(10.0 * width).view(10, width))
    tied = ParallelLMHead(10, width, build, tied=embedding)
    rows, ids = torch.arange(2.0 * width).view(2, width), torch.tensor([0, 9])
    logits, vectors = tied(rows), embedding(ids)
    prepare_weights(torch.nn.ModuleList([embedding, tied]))
    assert torch.equal(tied(rows), logits)
    assert torch.equal(embedding(ids), vectors)
    return [embedding.weight, tied.weight]


def test_a_tied_weight_is_held_once_where_the_embedding_reads_the_prepared_one(build: BuildContext) -> None:
    embedding, head = _tied(_ReadingOps(), [], 4, build)
    assert embedding is head


def test_a_tied_weight_is_held_twice_where_the_provider_says_so_of_its_size(build: BuildContext) -> None:
    embedding, head = _tied(_ReadingOps(), [], 6, build)
    assert embedding is not head


class _OtherEmbedding(TorchOps):
    name: ClassVar[str] = "other"
    rank: ClassVar[int] = 90

    def supports(self, request: OpRequest) -> str | None:
        return None if request.op == "embedding" else "embedding alone"


def test_a_tied_weight_is_held_twice_where_another_provider_embeds(build: BuildContext) -> None:
    embedding, head = _tied(_ReadingOps(), [_OtherEmbedding()], 4, build)
    assert embedding is not head
