"""The registry of ops: each is named once, with its parameters, a torch reference and a fake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from corefw.errors import PluginError

__all__ = ["Op", "get_op", "op_names", "register_op"]


@dataclass(frozen=True, slots=True)
class Op:
    """One op.

    Attributes:
        name: unique.
        schema: parameters and results as torch.library writes them, without the name.
        reference: plain torch, right in every dtype; the meaning of the op.
        fake: allocates results of the right shape and dtype and computes nothing. Neither it nor any kernel returns
            an alias of an input.
    """

    name: str
    schema: str
    reference: Callable[..., Any]
    fake: Callable[..., Any]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(inspect.signature(self.reference).parameters)


_OPS: dict[str, Op] = {}


def register_op(op: Op) -> Op:
    """Add an op.

    Raises:
        PluginError: the name is taken, or reference and fake have different parameters.
    """
    if op.name in _OPS:
        raise PluginError(f"op {op.name!r} is registered already; an op is named once, kernels come from providers")
    if tuple(inspect.signature(op.fake).parameters) != op.parameters:
        raise PluginError(f"op {op.name!r}: reference and fake must have the same parameters {op.parameters}")
    _OPS[op.name] = op
    return op


def op_names() -> tuple[str, ...]:
    """Every registered name, in order of registration."""
    return tuple(_OPS)


def get_op(name: str) -> Op:
    """The op of that name.

    Raises:
        PluginError: unknown; names the nearest.
    """
    if name not in _OPS:
        near = get_close_matches(name, _OPS, n=3) or sorted(_OPS)
        raise PluginError(f"op {name!r} is unknown; nearest: {', '.join(near)}")
    return _OPS[name]
