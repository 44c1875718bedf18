"""From the tensors of a GGUF file to Hugging Face names, row order and values. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corefw.errors import ModelFormatError
from corefw.models.loading.gguf_architectures import GGUFArchitecture, TensorRule
from corefw.models.loading.gguf_file import GGUFFile, TensorInfo

__all__ = ["MappedTensor", "check_complete", "map_tensors", "raw_in_hf_order", "undo_head_permutation"]

_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.")


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor of the file, its Hugging Face name, and the rule that it follows."""

    source: TensorInfo
    name: str
    rule: TensorRule


def map_tensors(file: GGUFFile, architecture: GGUFArchitecture) -> Iterator[MappedTensor]:
    """Every weight of the file, in the file's order.

    Raises:
        ModelFormatError: a tensor that the family doesn't have.
    """
    for source in file.tensors.values():
        if source.name in architecture.ignored:
            continue
        match = _LAYER_NAME.match(source.name)
        pattern = source.name if match is None else "blk.{layer}." + source.name[match.end() :]
        rule = architecture.tensors.get(pattern)
        if rule is None:
            raise ModelFormatError(
                f"{file.path}: tensor {source.name[:80]!r} isn't known in the architecture {architecture.name!r}; "
                "the model is a variant that can't be computed faithfully, use another file"
            )
        yield MappedTensor(source, rule.name.format(layer=match[1]) if match else rule.name, rule)


def check_complete(file: GGUFFile, architecture: GGUFArchitecture, num_layers: int) -> None:
    """Refuse a file that lacks a weight, or has weights of layers beyond ``num_layers``."""
    layers = range(num_layers)
    for pattern, rule in architecture.tensors.items():
        if not rule.required:
            continue
        for name in (pattern.format(layer=n) for n in layers) if "{layer}" in pattern else (pattern,):
            if name not in file.tensors:
                raise ModelFormatError(
                    f"{file.path}: tensor {name!r} is missing; the file is incomplete, fetch it again"
                )
    for name in file.tensors:
        match = _LAYER_NAME.match(name)
        if match and int(match[1]) >= num_layers:
            raise ModelFormatError(
                f"{file.path}: tensor {name[:80]!r} belongs to a layer beyond the {num_layers} that "
                f"{architecture.name}.block_count declares; convert the model again"
            )


def raw_in_hf_order(file: GGUFFile, tensor: MappedTensor, hf_config: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """The tensor's bytes with rows in Hugging Face order; a view of the file unless rows had to move.

    Blocks run along a row, so rows can be moved before they are decoded.
    """
    raw = file.raw(tensor.source.name)
    if tensor.rule.heads_key is None:
        return raw
    num_heads = int(hf_config[tensor.rule.heads_key])
    num_rows = tensor.source.shape[0]
    if num_rows % (2 * num_heads) or raw.size % num_rows:
        raise ModelFormatError(
            f"{file.path}: tensor {tensor.source.name[:80]!r} has {num_rows} rows, which {num_heads} heads of even "
            "size can't share; convert the model again"
        )
    return undo_head_permutation(raw.reshape(num_rows, -1), num_heads)


def undo_head_permutation(rows: npt.NDArray[np.uint8], num_heads: int) -> npt.NDArray[np.uint8]:
    """Rows of each head from interleaved (0, h/2, 1, h/2+1, …) back to rotate-half order (0, 1, …, h-1).

    Args:
        rows: ``(num_heads * head_dim, anything)``.
        num_heads: heads that share the rows.
    """
    num_rows, width = rows.shape
    half = num_rows // num_heads // 2
    return rows.reshape(num_heads, half, 2, width).swapaxes(1, 2).reshape(num_rows, width)
