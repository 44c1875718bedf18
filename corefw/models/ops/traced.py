"""The torch.library face of a bound kernel: what a tracing compiler sees as one opaque op."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from corefw.interfaces.op_provider import OpRequest
from corefw.models.ops.schema import Op

__all__ = ["traced_face"]

_library: torch.library.Library | None = None
_faces: dict[str, Callable[..., Any]] = {}


def traced_face(op: Op, request: OpRequest, provider: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as ``torch.ops.corefw.<name>``, with the op's fake; registered at the first call.

    The name is a function of what was asked and who answered, so compiled code finds it again in another process.
    """
    name = _face_name(request, provider)
    if name in _faces:  # a provider may make a new closure each time; the first answered the same request
        return _faces[name]
    global _library  # a Library's registrations last as long as it does
    if _library is None:
        _library = torch.library.Library("corefw", "FRAGMENT")
    _library.define(f"{name}{op.schema}")
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"corefw::{name}", op.fake, lib=_library)
    face: Callable[..., Any] = getattr(torch.ops.corefw, name).default
    _faces[name] = face
    return face


def _face_name(request: OpRequest, provider: str) -> str:
    parts = [request.op, provider, request.device_type, request.dtype]
    if request.batch_invariant:
        parts.append("invariant")
    parts += [f"{key}{value}" for key, value in sorted(request.shape.items())]
    parts += [request.layout] if request.layout else []
    return re.sub(r"\W", "_", "_".join(parts))
