"""OpBinder: asks the providers once a layer, hands out plain callables, and remembers who won and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.interfaces.selection import Selection
from corefw.models.ops import definitions
from corefw.models.ops.kernels import fit_kernel
from corefw.models.ops.schema import Op, get_op
from corefw.models.ops.traced import traced_face
from corefw.plugin_system.selection import select

if TYPE_CHECKING:
    import torch

__all__ = ["AskingBinder", "OpBinder"]

assert definitions.LINEAR  # importing the definitions registers them


class OpBinder:
    """Binds ops for one device and dtype.

    Args:
        providers: asked in order of ``rank``, largest first; equal ranks in the order given.
        device_type: torch's device type.
        dtype: name of the activations' dtype.
        batch_invariant: bind only kernels whose results don't depend on the batch.
    """

    def __init__(self, providers: Sequence[OpProvider], *, device_type: str, dtype: str, batch_invariant: bool) -> None:
        self._providers = tuple(sorted(providers, key=lambda provider: -provider.rank))
        self._device_type = device_type
        self._dtype = dtype
        self._batch_invariant = batch_invariant
        self._bound: dict[tuple[object, ...], Callable[..., Any]] = {}
        self._selections: dict[tuple[object, ...], Selection] = {}
        self._chosen: dict[tuple[object, ...], tuple[OpProvider, OpRequest]] = {}

    @property
    def selections(self) -> tuple[Selection, ...]:
        """What was chosen so far, one entry an op and shape."""
        return tuple(self._selections.values())

    def bind(self, op: str, *, mode: Literal["eager", "traced"] = "eager", **shape: int) -> Callable[..., Any]:
        """The callable for an op.

        Args:
            op: its name.
            mode: ``eager`` gives the kernel itself, ``traced`` its torch.library face.
            shape: sizes fixed at build.

        Raises:
            ConfigError: no provider has a kernel; names each reason.
            PluginError: the op is unknown, or the kernel's parameters don't fit.
        """
        key = _key(op, shape)
        if (key, mode) not in self._bound:
            self._bound[key, mode] = self._resolve(get_op(op), mode, key, shape)
        return self._bound[key, mode]

    def prepare_weight(self, op: str, weight: torch.Tensor, **shape: int) -> torch.Tensor:
        """The weight as the kernel that was bound for this op and shape likes it best; see ``OpProvider``."""
        provider, request = self._chosen[_key(op, shape)]
        return provider.prepare_weight(request, weight)

    def _resolve(self, op: Op, mode: str, key: tuple[object, ...], shape: dict[str, int]) -> Callable[..., Any]:
        provider, request = self._choose(op, key, shape)
        kernel = fit_kernel(op.name, op.parameters, provider.kernel(request))
        return traced_face(op, request, provider.name, kernel) if mode == "traced" else kernel

    def _choose(self, op: Op, key: tuple[object, ...], shape: dict[str, int]) -> tuple[OpProvider, OpRequest]:
        request = OpRequest(
            op=op.name,
            device_type=self._device_type,
            dtype=self._dtype,
            batch_invariant=self._batch_invariant,
            shape=shape,
        )
        selection = select(_title(op.name, shape), [(p.name, _asking(p, request)) for p in self._providers])
        self._selections[key] = selection
        provider = next(p for p in self._providers if p.name == selection.chosen)
        self._chosen[key] = provider, request
        return provider, request


class AskingBinder(OpBinder):
    """Asks the providers, and makes no kernel: for saying what would be chosen where the device may not be."""

    def _resolve(self, op: Op, mode: str, key: tuple[object, ...], shape: dict[str, int]) -> Callable[..., Any]:
        del mode
        self._choose(op, key, shape)
        return op.fake


def _key(op: str, shape: dict[str, int]) -> tuple[object, ...]:
    return (op, *sorted(shape.items()))


def _asking(provider: OpProvider, request: OpRequest) -> Callable[[], str | None]:
    return lambda: provider.supports(request)


def _title(op: str, shape: dict[str, int]) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in shape.items())
    return f"op {op}" + (f" ({sizes})" if sizes else "")
