"""What torch does while a step is recorded: views and new memory pass, some ops become kernels, the rest is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corefw_cpu_kernels.calls import Kernel

__all__ = ["TorchWatch"]

_copy_strided = Kernel("copy_strided")
_scale = Kernel("scale")

_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_COPIES = frozenset({"clone", "contiguous", "reshape", "flatten"})
_MAX_DIMENSIONS = 4


class TorchWatch(TorchDispatchMode):
    """Sees every op of this thread inside its ``with`` block.

    Attributes:
        made: tensors that were allocated; all of them are kept, so that no two have one address.
        refusal: why the step can't be recorded; None as long as it can.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[torch.Tensor] = []
        self.refusal: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch else imports its compiler with the first op that it watches: a second, and 100 MB, for nothing."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        result = func(*args, **kwargs)
        if self.refusal is not None or _is_view(func, args, kwargs, result):
            return result
        if name in _ALLOCATIONS or (name in _COPIES and _copied(result, args[0])) or _product(name, result, args):
            self.made.append(result)
        else:
            self.refusal = f"torch computes {func._schema.name}"
        return result


def _is_view(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether all results are memory of the arguments, which the op leaves as it is."""
    if any(arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments):
        return False
    given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    results = tree_leaves(result)
    return all(isinstance(leaf, torch.Tensor) and _storage(leaf) in given for leaf in results) and bool(results)


def _copied(result: torch.Tensor, source: torch.Tensor) -> bool:
    """Have a kernel copy; False where it can't."""
    if not result.is_contiguous() or source.dim() > _MAX_DIMENSIONS or result.dtype != source.dtype:
        return False
    missing = _MAX_DIMENSIONS - source.dim()
    sizes, strides = (1,) * missing + tuple(source.shape), (0,) * missing + tuple(source.stride())
    _copy_strided(result, source, source.itemsize, *sizes, *strides)
    return True


def _product(name: str, result: torch.Tensor, args: Any) -> bool:
    """Have a kernel multiply with a number; False where it can't."""
    if name != "mul" or len(args) != 2 or isinstance(args[1], torch.Tensor) or not isinstance(args[0], torch.Tensor):
        return False
    source, factor = args
    if source.dtype != torch.bfloat16 or not (source.is_contiguous() and result.is_contiguous()):
        return False
    _scale(result, source, source.numel(), float(factor))
    return True


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
