"""Conformance suite of quantisation methods. Shapes: O rows, I inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from corefw.config.model_info import ModelInfo
from corefw.interfaces.quantization import (
    QuantizableLayer,
    QuantizationMethod,
    QuantizationRequest,
    WeightConverter,
)
from corefw.interfaces.selection import Selection
from corefw.models.layers.blocks import BlockTensor
from corefw.testing.configs import fake_model_info
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

__all__ = ["QuantizationMethodSuite"]

_LAYERS = ("layers.0.self_attn.qkv_proj", "layers.3.mlp.down_proj", "lm_head")
_ROWS, _INPUTS = 24, 512


class QuantizationMethodSuite(PluginSuite):
    """For ``corefw.quantization_methods``.

    Attributes:
        tolerance: of a held weight, as a part of its largest value.
        asked: what the operator says with ``--quantization``; None: the plugin's name.
        settings: what the operator says with ``--quantization-config``.
    """

    plugin: ClassVar[type[QuantizationMethod]]
    group = "quantization_methods"
    tolerance: ClassVar[float] = 0.2
    asked: ClassVar[str | None] = None
    settings: ClassVar[Mapping[str, Any]] = {}

    def model_info(self) -> ModelInfo:
        """A model that the method serves; by default one with plain weights."""
        return fake_model_info()

    def test_it_says_yes_or_why_not(self) -> None:
        for dtype in ("float32", "bfloat16", "float16"):
            for named in (True, False):
                check_reason(self.plugin().supports(self._request(dtype, named=named)), "supports()")

    def test_its_formats_are_block_types(self) -> None:
        formats = self._converter().formats()
        assert formats, "formats() is empty: no layer could hold anything"
        assert all(isinstance(name, str) for name in formats), f"formats() gave {formats!r}"

    def test_what_layers_hold_is_of_its_formats_and_near_the_weight(self) -> None:
        converter = self._converter()
        assert all(isinstance(told, Selection) for told in converter.plan(_layers())), "plan() gave no selections"
        weight_OI = torch.randn(_ROWS, _INPUTS, generator=torch.Generator().manual_seed(0))
        for layer in _LAYERS:
            held = converter.convert(layer, weight_OI.bfloat16())
            if isinstance(held, BlockTensor):
                assert held.type.name in converter.formats(), f"{layer}: {held.type.name} isn't one of its formats"
                held = held.dequantised()
            assert tuple(held.shape) == (_ROWS, _INPUTS), f"{layer}: its shape is {list(held.shape)}"
            error = float((held.float() - weight_OI).abs().max() / weight_OI.abs().max())
            assert error <= self.tolerance, f"{layer}: off by {error:.2f} of the largest value"

    def test_what_the_operator_should_know_is_text(self) -> None:
        assert all(isinstance(remark, str) and remark for remark in self._converter().remarks())

    def _converter(self) -> WeightConverter:
        request = self._request("bfloat16", named=True)
        reason = self.plugin().supports(request)
        if reason is not None:
            raise NotChecked(f"return a model that it serves from model_info(); of this one it says: {reason}")
        return self.plugin().converter(request)

    def _request(self, dtype: str, *, named: bool) -> QuantizationRequest:
        return QuantizationRequest(
            info=self.model_info(),
            dtype=dtype,
            device_type="cpu",
            named=named,
            asked=self.asked or self.plugin.name,
            settings=self.settings,
        )


def _layers() -> list[QuantizableLayer]:
    return [
        QuantizableLayer(
            name=name,
            kind="lm_head" if name == "lm_head" else "linear",
            in_features=_INPUTS,
            names=[[name, f"model.{name}"]],
        )
        for name in _LAYERS
    ]
