"""Linear layers, cut by rank: by output rows (column-parallel) or by input columns (row-parallel).

Weights are [out, in], as checkpoints have them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from corefw.models.layers.context import BuildContext
from corefw.models.layers.packed_parameter import weight_parameter
from corefw.models.layers.parameter import Parameter, Piece, whole
from corefw.models.layers.product import ProductLayer
from corefw.models.layers.sharding import Split, split_heads

__all__ = ["ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear", "RowParallelLinear"]


def _rows(in_features: int, outputs: Mapping[str, Split]) -> tuple[dict[str, Piece], dict[str, Piece]]:
    """Pieces of weight and bias when outputs stand one below the other."""
    weight: dict[str, Piece] = {}
    bias: dict[str, Piece] = {}
    offset = 0
    for shard_id, split in outputs.items():
        weight[shard_id] = Piece((split.total, in_features), 0, split, offset)
        bias[shard_id] = Piece((split.total,), 0, split, offset)
        offset += split.size
    return weight, bias


class MergedColumnParallelLinear(ProductLayer):
    """Several linear layers of the same input in one product; each is cut by its own outputs.

    Args:
        in_features: width of the input, whole on every rank.
        outputs: by shard id, in order, this rank's part of the outputs.
        bias: whether there is one.
        build: the build context.
    """

    def __init__(self, in_features: int, outputs: Mapping[str, Split], *, bias: bool, build: BuildContext) -> None:
        super().__init__()
        weight, bias_pieces = _rows(in_features, outputs)
        self._bind(weight_parameter(weight, build), build)
        self.bias = Parameter(bias_pieces, build) if bias else None

    def forward(self, input_TE: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, this rank's outputs]."""
        out: torch.Tensor = self._linear(input_TE, self.weight, self.bias)
        return out


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One linear layer, cut by its outputs."""

    def __init__(self, in_features: int, output: Split, *, bias: bool, build: BuildContext) -> None:
        super().__init__(in_features, {"": output}, bias=bias, build=build)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections, cut by KV group: a rank has whole KV heads and all their query heads.

    With more ranks than KV heads a rank has one KV head, as others do, and some of its query heads.

    Attributes:
        num_heads: query heads on this rank.
        num_kv_heads: KV heads on this rank.
        heads: this rank's part of the query's elements; the output projection is cut the same way.
    """

    def __init__(
        self, in_features: int, num_heads: int, num_kv_heads: int, head_size: int, *, bias: bool, build: BuildContext
    ) -> None:
        query_heads, kv_heads = split_heads(num_heads, num_kv_heads, build.tp)
        query, kv = query_heads.scaled(head_size), kv_heads.scaled(head_size)
        super().__init__(in_features, {"q": query, "k": kv, "v": kv}, bias=bias, build=build)
        self.num_kv_heads = kv_heads.size
        self.num_heads = query_heads.size
        self.heads = query
        self._sizes = (query.size, kv.size, kv.size)

    def split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of query [T, H·D], key and value [T, K·D]."""
        query, key, value = qkv.split(self._sizes, dim=-1)
        return query, key, value


class RowParallelLinear(ProductLayer):
    """A linear layer cut by its inputs: every rank has a partial sum of all outputs, which are then added up.

    Args:
        input: this rank's part of the inputs.
        out_features: width of the output, whole on every rank.
        bias: whether there is one; it is added once, after the sum.
        build: the build context.
    """

    def __init__(self, input: Split, out_features: int, *, bias: bool, build: BuildContext) -> None:
        super().__init__()
        self._bind(weight_parameter({"": Piece((out_features, input.total), 1, input)}, build), build)
        self.bias = Parameter(whole(out_features), build) if bias else None
        self._tp = build.tp

    def forward(self, input_TI: torch.Tensor) -> torch.Tensor:
        """[T, this rank's inputs] → [T, out]."""
        if self._tp.size == 1:
            out: torch.Tensor = self._linear(input_TI, self.weight, self.bias)
            return out
        total = self._tp.all_reduce(self._linear(input_TI, self.weight, None))
        return total if self.bias is None else total + self.bias
