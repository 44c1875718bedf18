from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from corefw.builtins.ops.torch_ops import TorchOps
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.models.ops.binder import OpBinder


class Doubling(OpProvider):
    """Has a silu_and_mul of its own, for small widths."""

    name: ClassVar[str] = "doubling"
    rank: ClassVar[int] = 80

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self._kernel = kernel

    def supports(self, request: OpRequest) -> str | None:
        if request.op != "silu_and_mul":
            return f"no kernel for {request.op}"
        return None if request.shape.get("width", 0) <= 8 else "width above 8"

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        return self._kernel


def binder(*providers: OpProvider, dtype: str = "float32", batch_invariant: bool = True) -> OpBinder:
    return OpBinder([TorchOps(), *providers], device_type="cpu", dtype=dtype, batch_invariant=batch_invariant)


def double(input: torch.Tensor) -> torch.Tensor:
    return input[..., : input.shape[-1] // 2] * 2


def test_a_provider_of_higher_rank_is_asked_first() -> None:
    kernel = binder(Doubling(double)).bind("silu_and_mul", width=4)
    assert kernel is double


def test_where_it_cannot_the_next_one_is_taken_and_the_reason_kept() -> None:
    ops = binder(Doubling(double))
    assert ops.bind("silu_and_mul", width=16) is not double
    (selection,) = ops.selections
    assert selection.chosen == "torch"
    assert [(r.name, r.reason) for r in selection.rejected] == [("doubling", "width above 8")]


def test_an_op_is_bound_once_for_a_shape() -> None:
    ops = binder()
    first = ops.bind("linear", in_features=8, out_features=4)
    assert ops.bind("linear", out_features=4, in_features=8) is first
    assert len(ops.selections) == 1


def test_an_unknown_op_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PluginError, match=r"'rms_nrom'.*rms_norm"):
        binder().bind("rms_nrom")


def test_batch_invariance_that_nobody_has_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"op linear.*no fixed order of additions in bfloat16"):
        binder(dtype="bfloat16").bind("linear", in_features=8, out_features=4)


def test_the_traced_face_is_an_opaque_op_with_the_same_bits() -> None:
    ops = binder()
    eager = ops.bind("linear", in_features=24, out_features=7)
    traced = ops.bind("linear", mode="traced", in_features=24, out_features=7)
    arguments = torch.randn(5, 24), torch.randn(7, 24), torch.randn(7)
    assert torch.equal(eager(*arguments), traced(*arguments))
    assert isinstance(traced, torch._ops.OpOverload)
    assert traced is ops.bind("linear", mode="traced", in_features=24, out_features=7)
    torch.library.opcheck(traced, arguments, test_utils=("test_schema", "test_faketensor"))


def test_traced_faces_of_every_op_agree_with_their_fakes() -> None:
    ops = binder(dtype="bfloat16", batch_invariant=False)
    rows = torch.randn(3, 8)
    for name, arguments in {
        "embedding": (torch.tensor([1, 0]), rows),
        "rms_norm": (rows, torch.ones(8), 1e-5),
        "add_rms_norm": (rows, rows.clone(), torch.ones(8), 1e-5),
        "silu_and_mul": (rows,),
        "rotary_embedding": (rows, rows.clone(), torch.tensor([0, 1, 2]), torch.randn(4, 4), 4),
    }.items():
        torch.library.opcheck(ops.bind(name, mode="traced"), arguments, test_utils=("test_schema", "test_faketensor"))
