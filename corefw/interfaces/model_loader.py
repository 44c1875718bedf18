"""ModelLoader: reads a model's header (torch-free) and its weights (in a worker)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from corefw.config.model_info import ModelFiles, ModelInfo
    from corefw.models.layers.blocks import BlockTensor

__all__ = ["ModelLoader"]


class ModelLoader(ABC):
    """One file format (group ``corefw.model_loaders``). Importing the module must not import torch."""

    name: ClassVar[str]
    api_version: ClassVar[int] = 1

    @abstractmethod
    def supports(self, files: ModelFiles) -> str | None:
        """None when these files are of this format, else why not. Reads at most a header."""

    @abstractmethod
    def read_info(self, files: ModelFiles) -> ModelInfo:
        """Everything but the weights, in Hugging Face terms. Torch-free.

        Raises:
            ModelFormatError: damaged, incomplete or unsupported; names the file, the key and the remedy.
        """

    @abstractmethod
    def weights(self, info: ModelInfo, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor under its Hugging Face name and in Hugging Face row order, on the CPU.

        Floating tensors may come in the checkpoint's dtype or in ``dtype``; block formats come dequantised to ``dtype``
        (through float32). A tensor may be a view of mapped memory: copy it before the iterator ends.
        """

    def weights_in_blocks(
        self, info: ModelInfo, dtype: torch.dtype, types: Collection[str]
    ) -> Iterator[tuple[str, torch.Tensor | BlockTensor]]:
        """As ``weights``, but matrices of these block types come as they are in the file. Default: none does.

        Args:
            info: as for ``weights``; says in ``block_types`` which there are.
            dtype: of what comes otherwise.
            types: names of block types.
        """
        del types
        return self.weights(info, dtype)
