from __future__ import annotations

import pytest
import torch

from corefw.builtins.ops.packed_linear import can_pack
from corefw.builtins.ops.torch_ops import TorchOps
from corefw.interfaces.op_provider import OpRequest
from corefw.models.ops import definitions


def _request(op: str, dtype: str = "bfloat16", **shape: int) -> OpRequest:
    return OpRequest(op=op, device_type="cpu", dtype=dtype, batch_invariant=dtype == "float32", shape=shape)


@pytest.mark.parametrize("num_rows", [1, 7, 33, 200])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_weight_gives_the_plain_one_s_product(num_rows: int, with_bias: bool) -> None:
    torch.manual_seed(num_rows)
    request = _request("linear", in_features=96, out_features=80)
    weight, bias = torch.randn(80, 96).bfloat16(), torch.randn(80).bfloat16() if with_bias else None
    rows = torch.randn(num_rows, 192).bfloat16()[:, 96:]  # not contiguous, as parts of a joined projection aren't
    provider = TorchOps()
    packed = provider.prepare_weight(request, weight)
    assert packed.is_mkldnn == can_pack()
    kernel = provider.kernel(request)
    expected = rows.double() @ weight.double().T + (0 if bias is None else bias.double())
    for held in (packed, weight):
        with torch.inference_mode():
            assert torch.allclose(kernel(rows, held, bias).double(), expected, rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_only_bfloat16_weights_are_packed(dtype: str) -> None:
    weight = torch.randn(8, 8, dtype=getattr(torch, dtype))
    assert TorchOps().prepare_weight(_request("linear", dtype, in_features=8, out_features=8), weight) is weight


@pytest.mark.parametrize(("head_size", "rotary_size"), [(16, 16), (16, 8)])
def test_turning_queries_and_keys_together_is_as_exact_as_one_by_one(head_size: int, rotary_size: int) -> None:
    torch.manual_seed(head_size + rotary_size)
    query, key = torch.randn(9, 4 * head_size).bfloat16(), torch.randn(9, 2 * head_size).bfloat16()
    angle = torch.randn(30, rotary_size // 2)
    table = torch.cat((angle.cos(), angle.sin()), dim=-1)
    positions = torch.tensor([0, 3, 29, 7, 7, 1, 2, 28, 5])
    kernel = TorchOps().kernel(_request("rotary_embedding", head_size=head_size, rotary_size=rotary_size))
    exact = definitions.rotary_embedding(query.double(), key.double(), positions, table.double(), head_size)
    for turned, expected in zip(kernel(query, key, positions, table, head_size), exact, strict=True):
        assert turned.dtype == torch.bfloat16
        assert torch.allclose(turned.double(), expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_in_half_precision_are_rounded_once(dtype: str) -> None:
    torch.manual_seed(3)
    rows, stream, weight = (torch.randn(shape, dtype=getattr(torch, dtype)) for shape in ((9, 64), (9, 64), (64,)))
    norm, add_norm = (TorchOps().kernel(_request(op, dtype, width=64)) for op in ("rms_norm", "add_rms_norm"))
    total = rows + stream
    exact = definitions.rms_norm(total.float(), weight.float(), 1e-5).to(total.dtype)
    normed, kept = add_norm(rows, stream, weight, 1e-5)
    assert torch.equal(kept, total)
    for result in (normed, norm(total, weight, 1e-5)):
        assert torch.allclose(result.float(), exact.float(), rtol=torch.finfo(total.dtype).eps, atol=0)
