"""Which block types are computed as they are, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from corefw.builtins.ops.torch_ops import TorchOps
from corefw.builtins.quantization.gguf import GGUFBlocks
from corefw.errors import ConfigError
from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.models.ops.binder import OpBinder
from corefw.models.quantization import plan_quantization
from corefw.testing.configs import fake_config


class Some(OpProvider):
    """Has kernels for one block type."""

    name: ClassVar[str] = "some"

    def supports(self, request: OpRequest) -> str | None:
        if not request.op.startswith("quantized_"):
            return "only blocks"
        return None if request.layout == "Q4_1" else f"nothing for {request.layout}"

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        raise AssertionError("nobody binds here")


class Plugins:
    def get(self, group: str, name: str) -> Any:
        assert (group, name) == ("quantization_methods", "gguf")
        return GGUFBlocks


def plan(*providers: OpProvider, named: str | None = None, method: str | None = "gguf") -> Any:
    config = replace(fake_config(quantization=named), quantization=method)
    info = replace(config.model_info, quantization="gguf", block_types=("Q4_1", "Q2_K"))
    binder = OpBinder([*providers, TorchOps()], device_type="cpu", dtype="bfloat16", batch_invariant=False)
    plugins: Any = Plugins()
    return plan_quantization(replace(config, model_info=info), binder, "cpu", plugins)


def test_types_with_kernels_are_kept_and_the_others_dequantised_with_each_reason() -> None:
    found, selections = plan(Some())
    assert found.types == {"Q4_1"}
    kept, dequantised = selections
    assert str(kept).startswith("weights in Q4_1: computed in blocks (kernels of some")
    assert (dequantised.what, dequantised.chosen) == ("weights in Q2_K", "dequantised")
    assert "not some: nothing for Q2_K" in dequantised.reason
    assert "no kernel computes it as it is" in dequantised.reason


def test_without_kernels_every_weight_is_plain() -> None:
    found, selections = plan()
    assert found is None
    assert [selection.chosen for selection in selections] == ["dequantised", "dequantised"]


def test_a_method_that_was_asked_for_needs_a_kernel() -> None:
    assert plan(Some(), named="gguf")[0] is not None
    with pytest.raises(ConfigError, match=r"--quantization gguf: no weight could be computed so .*Q4_1: .*Q2_K: "):
        plan(named="gguf")


def test_without_a_method_nobody_is_asked() -> None:
    assert plan(Some(), method=None) == (None, ())
