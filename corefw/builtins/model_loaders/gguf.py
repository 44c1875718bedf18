"""The GGUF loader: one ``.gguf`` file or all parts of a split one, weights dequantised while they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from corefw.interfaces.model_loader import ModelLoader
from corefw.models.loading.gguf_blocks import dequantise
from corefw.models.loading.gguf_config import architecture_of, read_gguf_info
from corefw.models.loading.gguf_file import GGUFFile, has_gguf_magic, shared_file
from corefw.models.loading.gguf_tensors import MappedTensor, map_tensors, raw_in_hf_order

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from corefw.config.model_info import ModelFiles, ModelInfo
    from corefw.models.layers.blocks import BlockTensor

__all__ = ["GGUFLoader"]


class GGUFLoader(ModelLoader):
    """Reads GGUF versions 2 and 3.

    Attributes:
        scratch_elements: float32 numbers held at once while decoding into a narrower dtype; 16 MiB.
    """

    name: ClassVar[str] = "gguf"
    scratch_elements: ClassVar[int] = 1 << 22

    def supports(self, files: ModelFiles) -> str | None:
        """Every file begins with the magic or is called ``.gguf``."""
        if not files.weights:
            return "there are no weight files"
        for path in files.weights:
            if not path.endswith(".gguf") and not has_gguf_magic(path):
                return f"{Path(path).name} isn't a GGUF file"
        return None

    def read_info(self, files: ModelFiles) -> ModelInfo:
        """Header only."""
        return read_gguf_info(shared_file(*files.weights), files, self.name)

    def weights(self, info: ModelInfo, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Plain floats as views of the mapped file in their own dtype, blocks decoded to ``dtype``."""
        file = GGUFFile(*info.files.weights)
        for tensor in map_tensors(file, architecture_of(file)):
            yield tensor.name, self._to_torch(raw_in_hf_order(file, tensor, info.hf_config), tensor, dtype)

    def weights_in_blocks(
        self, info: ModelInfo, dtype: torch.dtype, types: Collection[str]
    ) -> Iterator[tuple[str, torch.Tensor | BlockTensor]]:
        """Matrices of these types as views of the mapped file, but for rows that have to move."""
        import torch

        from corefw.models.layers.blocks import BlockTensor

        file = GGUFFile(*info.files.weights)
        for tensor in map_tensors(file, architecture_of(file)):
            raw = raw_in_hf_order(file, tensor, info.hf_config)
            source = tensor.source
            if source.type.name in types and len(source.shape) == 2 and not tensor.rule.offset:
                rows = torch.from_numpy(raw.reshape(source.shape[0], -1))
                yield tensor.name, BlockTensor(rows, source.type)
            else:
                yield tensor.name, self._to_torch(raw, tensor, dtype)

    def _to_torch(self, raw: npt.NDArray[np.uint8], tensor: MappedTensor, dtype: torch.dtype) -> torch.Tensor:
        if tensor.source.type.is_block or tensor.rule.offset:
            decoded = self._decode(raw, tensor, dtype)
        else:
            decoded = _view(raw, tensor.source.type.name)
        return decoded.reshape(tensor.source.shape)

    def _decode(self, raw: npt.NDArray[np.uint8], tensor: MappedTensor, dtype: torch.dtype) -> torch.Tensor:
        """Through float32, a bounded piece at a time."""
        import torch

        kind = tensor.source.type
        flat = raw.reshape(-1, kind.block_bytes)
        decoded = torch.empty(tensor.source.num_elements, dtype=dtype)
        if dtype == torch.float32:
            dequantise(flat, kind, decoded.numpy())
            return decoded.sub_(tensor.rule.offset) if tensor.rule.offset else decoded
        step = self.scratch_elements // kind.block_elements
        scratch = np.empty(min(len(flat), step) * kind.block_elements, np.float32)
        for start in range(0, len(flat), step):
            piece = flat[start : start + step]
            values = dequantise(piece, kind, scratch[: len(piece) * kind.block_elements])
            if tensor.rule.offset:
                values -= np.float32(tensor.rule.offset)
            first = start * kind.block_elements
            decoded[first : first + len(values)].copy_(torch.from_numpy(values))
        return decoded


def _view(raw: npt.NDArray[np.uint8], type_name: str) -> torch.Tensor:
    import torch

    # numpy has no bfloat16: those bytes go through an integer of the same width.
    layout = {"F32": "<f4", "F16": "<f2", "BF16": "<i2"}[type_name]
    values = np.require(raw.reshape(-1).view(layout), requirements="A")
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if type_name == "BF16" else tensor
