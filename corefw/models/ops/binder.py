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

    from corefw.interfaces.graphs import GraphCapture

__all__ = ["AskingBinder", "OpBinder"]

_WEIGHT_OPS = frozenset({"linear", "quantized_linear", "quantized_embedding"})

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

    def graph_captures(self) -> tuple[GraphCapture, ...]:
        """What the providers offer for recording steps, in the order in which they are asked."""
        captures = (provider.graph_capture() for provider in self._providers)
        return tuple(capture for capture in captures if capture is not None)

    def bind(
        self, op: str, *, mode: Literal["eager", "traced"] = "eager", layout: str = "", **shape: int
    ) -> Callable[..., Any]:
        """The callable for an op.

        Args:
            op: its name.
            mode: ``eager`` gives the kernel itself, ``traced`` its torch.library face.
            layout: of a weight in blocks; see ``OpRequest``.
            shape: sizes fixed at build.

        Raises:
            ConfigError: no provider has a kernel; names each reason.
            PluginError: the op is unknown, or the kernel's parameters don't fit.
        """
        key = _key(op, layout, shape)
        if (key, mode) not in self._bound:
            self._bound[key, mode] = self._resolve(get_op(op), mode, key, self._request(op, layout, shape))
        return self._bound[key, mode]

    def candidates(self, op: str, layout: str = "") -> Selection:
        """Who would compute an op with weights of such blocks, whatever their sizes.

        Raises:
            ConfigError: nobody; names each reason.
        """
        return self._select(self._request(op, layout, {}))

    def widens(self, op: str, layout: str) -> bool:
        """Whether who would compute an op widens weights of such blocks in every call; see ``OpProvider.widens``."""
        request = self._request(op, layout, {})
        chosen = self._select(request).chosen
        return next(provider for provider in self._providers if provider.name == chosen).widens(request)

    def provider_of(self, op: str, *, layout: str = "", **shape: int) -> str:
        """Whose kernel was bound."""
        return self._chosen[_key(op, layout, shape)][0].name

    def prepare_weight(self, op: str, weight: torch.Tensor, *, layout: str = "", **shape: int) -> torch.Tensor:
        """The weight as the kernel that was bound for this op and shape likes it best; see ``OpProvider``."""
        provider, request = self._chosen[_key(op, layout, shape)]
        return provider.prepare_weight(request, weight)

    def prepared_forms(self) -> tuple[str, ...]:
        """The forms of prepared weights of those providers that name them."""
        named = ((provider.name, provider.prepared_form()) for provider in self._providers)
        return tuple(f"{name}:{form}" for name, form in named if form is not None)

    def preparers_without_form(self) -> tuple[str, ...]:
        """Providers whose kernels were bound to weights, and that don't name the form of prepared ones."""
        chosen = {provider.name: provider for (op, *_), (provider, _) in self._chosen.items() if op in _WEIGHT_OPS}
        return tuple(name for name, provider in chosen.items() if provider.prepared_form() is None)

    def embeds_prepared(self, **shape: int) -> bool:
        """Whether the bound ``embedding`` also reads what was prepared for the bound ``linear`` of that shape."""
        embedding = self._chosen.get(_key("embedding", "", {}))
        provider, request = self._chosen[_key("linear", "", shape)]
        return embedding is not None and embedding[0] is provider and provider.embeds_prepared(request)

    def _request(self, op: str, layout: str, shape: dict[str, int]) -> OpRequest:
        return OpRequest(
            op=op,
            device_type=self._device_type,
            dtype=self._dtype,
            batch_invariant=self._batch_invariant,
            shape=shape,
            layout=layout,
        )

    def _resolve(self, op: Op, mode: str, key: tuple[object, ...], request: OpRequest) -> Callable[..., Any]:
        provider = self._choose(key, request)
        kernel = fit_kernel(op.name, op.parameters, provider.kernel(request))
        return traced_face(op, request, provider.name, kernel) if mode == "traced" else kernel

    def _select(self, request: OpRequest) -> Selection:
        return select(_title(request), [(p.name, _asking(p, request)) for p in self._providers])

    def _choose(self, key: tuple[object, ...], request: OpRequest) -> OpProvider:
        selection = self._selections[key] = self._select(request)
        provider = next(p for p in self._providers if p.name == selection.chosen)
        self._chosen[key] = provider, request
        return provider


class AskingBinder(OpBinder):
    """Asks the providers, and makes no kernel: for saying what would be chosen where the device may not be."""

    def _resolve(self, op: Op, mode: str, key: tuple[object, ...], request: OpRequest) -> Callable[..., Any]:
        del mode
        self._choose(key, request)
        return op.fake


def _key(op: str, layout: str, shape: dict[str, int]) -> tuple[object, ...]:
    return (op, layout, *sorted(shape.items()))


def _asking(provider: OpProvider, request: OpRequest) -> Callable[[], str | None]:
    return lambda: provider.supports(request)


def _title(request: OpRequest) -> str:
    sizes = [f"{name}={size}" for name, size in request.shape.items()]
    details = ", ".join([*sizes, *([request.layout] if request.layout else [])])
    return f"op {request.op}" + (f" ({details})" if details else "")
