from __future__ import annotations

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
