"""Hooks of the loading chain: what becomes of each tensor between a model's files and its layers.

Source (the model loader) → filters → transforms → the model's layers. Tensors pass one at a time; nothing holds the
model twice. Behind the transforms a quantisation method (group ``corefw.quantization_methods``) says in which form the
layers hold each weight; a weight that plugins transform comes plain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    import torch

    from corefw.config.engine_config import EngineConfig

__all__ = ["WeightFilter", "WeightTransform", "corefw_weight_filter", "corefw_weight_transform"]


class WeightFilter(ABC):
    """Leaves tensors out, by name. Used in a worker, by one thread, while the model is loaded."""

    @abstractmethod
    def skip(self, name: str) -> str | None:
        """Why this tensor is left out; None to keep it.

        Args:
            name: as in the Hugging Face checkpoint, whatever the file format.
        """


class WeightTransform(ABC):
    """Renames, changes, drops and adds tensors. Used in a worker, by one thread, while the model is loaded."""

    @abstractmethod
    def transform(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """What becomes of one tensor: itself, another one, none, or several.

        Args:
            name: as in the Hugging Face checkpoint, or as an earlier transform named it.
            tensor: on the CPU, in the checkpoint's dtype or the model's. It may be a view of a mapped file: never
                written to in place, and copied by whoever keeps it.
        """

    def finish(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Tensors to add after all others passed. Later transforms see them too."""
        return ()


@hookspec
def corefw_weight_filter(config: EngineConfig) -> WeightFilter | None:
    """Bring a filter into the loading chain.

    Called in each worker, before the model's weights are loaded. All filters are asked, in the plugins' order, before
    any transform.

    Args:
        config: the engine's.

    Returns:
        a filter of this load; None for none.
    """


@hookspec
def corefw_weight_transform(config: EngineConfig) -> WeightTransform | None:
    """Bring a transform into the loading chain.

    Called in each worker, before the model's weights are loaded. Transforms follow one another in the plugins' order.

    Args:
        config: the engine's.

    Returns:
        a transform of this load; None for none.
    """
