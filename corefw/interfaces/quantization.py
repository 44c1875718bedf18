"""QuantizationMethod: weights in fewer bits than they are computed with, from the checkpoint or made while loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from corefw.config.model_info import ModelInfo
    from corefw.models.layers.blocks import BlockTensor

__all__ = ["QuantizationMethod", "QuantizationRequest", "WeightConverter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationRequest:
    """A model, and how it is to be computed.

    Attributes:
        info: what its loader says, with the block types of the files.
        dtype: of activations, resolved.
        device_type: torch's device type.
        named: the operator asked for the method; else it is the checkpoint's own.
    """

    info: ModelInfo
    dtype: str
    device_type: str
    named: bool = False


class WeightConverter(ABC):
    """The worker half: says in which form the layers of one model hold their weights."""

    @abstractmethod
    def formats(self) -> Sequence[str]:
        """Block types that it may hand to layers; for each, op providers are asked once whether they compute it."""

    def convert(self, layer: str, weight: torch.Tensor | BlockTensor) -> torch.Tensor | BlockTensor:
        """One piece of a layer's weight, rows by inputs, as the layer is to hold it. Called while weights are loaded.

        Args:
            layer: its module's name in the model, such as ``layers.0.mlp.down_proj``.
            weight: this rank's part, as the loader gave it: in blocks, or plain. May be a view of mapped memory.

        Returns:
            blocks, of a type in ``formats``, or a plain tensor for a layer that is computed as without the method.
        """
        del layer
        return weight

    def remarks(self) -> Sequence[str]:
        """What the operator should know once everything is loaded, such as settings that no layer matched."""
        return ()


class QuantizationMethod(ABC):
    """A way to hold weights (group ``corefw.quantization_methods``), by the name that ``--quantization`` takes.

    A method says what layers hold; op providers have the kernels that compute with it (``quantized_linear``,
    ``quantized_embedding``). Where none has, weights are dequantised, unless the operator named the method. Importing
    the module must not import torch, nor may ``supports``.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def supports(self, request: QuantizationRequest) -> str | None:
        """None when it can serve that model, else one sentence why not. Asked in the front end."""

    @abstractmethod
    def converter(self, request: QuantizationRequest) -> WeightConverter:
        """For a supported request; called once in every worker, on another instance of the class."""
