"""What a forward pass needs beside its tensors, by layer. The runner sets it, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.errors import EngineError

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.attention import AttentionMetadata

__all__ = ["Attend", "ForwardContext", "Splitter", "get_forward_context", "set_forward_context"]

Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
Splitter = Callable[[Attend, "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One step's metadata.

    Attributes:
        attention: by layer name; None while memory is measured, when attention returns zeros.
        slot_mapping: by layer name, int64 [T] on the device; -1 for tokens whose KV isn't stored.
        split: while a step is recorded in pieces: takes a layer's attention, query, key and value, and gives the result
            that the next piece reads. Else None.
    """

    attention: Mapping[str, AttentionMetadata] | None
    slot_mapping: Mapping[str, torch.Tensor]
    split: Splitter | None = None


_current: ContextVar[ForwardContext | None] = ContextVar("corefw_forward_context", default=None)


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Make ``context`` the current one inside the ``with`` block; contexts nest and are per thread."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """The current context.

    Raises:
        EngineError: a model is called outside ``set_forward_context``.
    """
    context = _current.get()
    if context is None:
        raise EngineError("a model with attention was called outside set_forward_context")
    return context
