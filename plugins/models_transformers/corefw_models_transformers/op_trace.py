"""Which ops a run consists of, and what its values come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["OpTrace"]

# Ops that mix tokens: what they are part of can't be cut into chunks and batches.
_MIXING = frozenset({"convolution", "cumsum", "cumprod", "_fft_r2c", "_fft_c2c"})
# Ops in which a row's bits depend neither on the other rows nor on a value's place in memory.
_FIXED = """
_fused_rms_norm _log_softmax _reshape_alias _softmax _to_copy _unsafe_view abs add addcmul alias amax amin
arange argmax bitwise_and bitwise_not bitwise_or cat clamp clamp_max clamp_min clone copy_ cos detach div
embedding empty empty_like empty_strided eq erf exp expand expm1 fill_ floor_divide full full_like gather ge gt
index index_put_ index_select le lift_fresh linalg_vector_norm log log1p logical_and logical_not logical_or lt
masked_fill max maximum mean min minimum mul native_layer_norm ne neg new_empty new_full new_ones new_zeros ones
ones_like permute pow reciprocal relu remainder repeat reshape rsqrt rsub scalar_tensor scatter select sign sin
slice sort split split_with_sizes sqrt square squeeze stack sub sum t tanh topk transpose unbind unsqueeze var
var_mean view view_as where zero_ zeros zeros_like
"""
_FIXED_OPS = frozenset(_FIXED.split())
_EXACT_POWERS = (-2, -1, -0.5, 0.5, 1, 2, 3)


class OpTrace(TorchDispatchMode):
    """While it is entered, notes every op.

    Args:
        positions: the tensor with each token's position.
        num_tokens: of the run.
        weights: names of parameters, by their id.

    Attributes:
        mixing: ops that mix tokens.
        unordered: ops whose results may depend on the batch in the last bits.
        read: names of parameters among ``weights`` that an op read.
    """

    def __init__(self, positions: torch.Tensor, num_tokens: int, weights: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mixing: set[str] = set()
        self.unordered: set[str] = set()
        self.read: set[str] = set()
        self._num_tokens = num_tokens
        self._weights = weights
        # Kept alive, so that no other tensor gets their ids.
        self._from_positions: dict[int, torch.Tensor] = {id(positions): positions}
        self._from_places: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        self._note(name, inputs, args)
        self.read.update(self._weights[id(tensor)] for tensor in inputs if id(tensor) in self._weights)
        is_counted = name == "arange" and any(t.numel() == self._num_tokens for t in outputs)
        for origin, known in ((False, self._from_positions), (is_counted, self._from_places)):
            if origin or any(id(tensor) in known for tensor in inputs):
                known.update({id(tensor): tensor for tensor in outputs})
        return out

    def uses_positions(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of them was worked out from the positions given."""
        return any(id(tensor) in self._from_positions for tensor in tensors)

    def uses_places(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether one of them was worked out from tokens' places in the batch."""
        return any(id(tensor) in self._from_places for tensor in tensors)

    def _note(self, name: str, inputs: list[torch.Tensor], args: tuple[Any, ...]) -> None:
        is_float = any(tensor.is_floating_point() for tensor in inputs)
        if is_float and (name in _MIXING or "scaled_dot_product" in name):
            self.mixing.add(name)
        if is_float and not _keeps_order(name, inputs, args):
            self.unordered.add(name)


def _keeps_order(name: str, inputs: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    if name in ("mm", "bmm"):
        return inputs[0].shape[-1] == 1  # one product an element, nothing to add
    if name in ("pow", "pow_"):
        return not isinstance(args[1], int | float) or args[1] in _EXACT_POWERS
    return name in _FIXED_OPS or name.removesuffix("_") in _FIXED_OPS


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
