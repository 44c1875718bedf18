"""QuantizationMethod: weights in fewer bits than they are computed with, from the checkpoint or made while loading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from corefw.config.model_info import ModelInfo
    from corefw.interfaces.selection import Selection
    from corefw.models.layers.blocks import BlockTensor

__all__ = ["QuantizableLayer", "QuantizationMethod", "QuantizationRequest", "WeightConverter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationRequest:
    """A model, and how it is to be computed.

    Attributes:
        info: what its loader says, with the block types of the files.
        dtype: of activations, resolved.
        device_type: torch's device type.
        named: the operator asked for the method; else it is the checkpoint's own.
        asked: what the operator said with ``--quantization``, which may be a shorthand of the method's.
        settings: what the operator said with ``--quantization-config``.
    """

    info: ModelInfo
    dtype: str
    device_type: str
    named: bool = False
    asked: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizableLayer:
    """A layer whose weight may be held in blocks.

    Attributes:
        name: its module's name in the model, such as ``layers.0.self_attn.qkv_proj``.
        kind: ``linear``, ``moe``, ``embedding`` or ``lm_head``; a head that shares the embedding's weight is one layer
            with it.
        in_features: elements of a row, over all ranks.
        names: by which operators know it, for each of the checkpoint's layers that it holds.
    """

    name: str
    kind: str
    in_features: int
    names: Sequence[Sequence[str]]


class WeightConverter(ABC):
    """The worker half: says in which form the layers of one model hold their weights.

    Attributes:
        stays_in_blocks: weights stay in blocks also where kernels have to widen them in every product, which takes less
            memory and more time than plain ones; else they are dequantised there.
    """

    stays_in_blocks: ClassVar[bool] = False

    @abstractmethod
    def formats(self) -> Sequence[str]:
        """Block types that it may hand to layers; for each, op providers are asked once whether they compute it."""

    def plan(self, layers: Sequence[QuantizableLayer]) -> Sequence[Selection]:
        """Told all layers once, before weights are loaded.

        Returns:
            what to print of it: what layers hold, and why.
        """
        del layers
        return ()

    def convert(self, layer: str, weight: torch.Tensor | BlockTensor) -> torch.Tensor | BlockTensor:
        """One piece of a layer's weight, rows by inputs, as the layer is to hold it. Called while weights are loaded.

        Args:
            layer: its module's name in the model, such as ``layers.0.mlp.down_proj``.
            weight: as the loader gave it: in blocks, or plain. Its rows are whole, so that a row comes out alike on
                however many ranks; there are this rank's, or all where ranks share out inputs. May be a view of mapped
                memory.

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
