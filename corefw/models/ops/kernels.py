"""Fits a provider's kernel to an op's parameters, when it is bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from corefw.errors import PluginError

__all__ = ["KernelAdapter", "fit_kernel"]

_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def fit_kernel(op: str, parameters: tuple[str, ...], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A callable that takes the op's parameters by position or keyword.

    The kernel itself when it names the same parameters in the same order, so that nothing stands in a launch's way.

    Raises:
        PluginError: the kernel's parameters are neither the op's names nor as many positional ones.
    """
    described = getattr(kernel, "arg_names", None)  # launchable kernels list their parameters instead
    names, positional = _describe(kernel) if described is None else (tuple(described), True)
    if names == parameters and positional:
        return kernel
    if set(names) == set(parameters) and len(names) == len(parameters):
        return KernelAdapter(op, parameters, kernel, by_keyword=True)
    if positional and len(names) == len(parameters) and _same_order(names, parameters):
        return KernelAdapter(op, parameters, kernel, by_keyword=False)
    raise PluginError(
        f"a kernel for op {op!r} takes ({', '.join(names)}), the op has ({', '.join(parameters)}); "
        "use the same names, or as many positional parameters with other names"
    )


def _same_order(names: tuple[str, ...], parameters: tuple[str, ...]) -> bool:
    """Whether no name that both know stands at different places."""
    return all(parameters.index(name) == at for at, name in enumerate(names) if name in parameters)


def _describe(kernel: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    try:
        found = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError) as error:
        raise PluginError(f"kernel {kernel!r} has no readable signature; wrap it in a function") from error
    names = tuple(p.name if p.kind in _PLAIN else f"*{p.name}" for p in found)
    return names, all(p.kind in _PLAIN[:2] for p in found)


class KernelAdapter:
    """Calls a kernel whose parameters are ordered or named differently from the op's."""

    __slots__ = ("_by_keyword", "_kernel", "_op", "_parameters")

    def __init__(self, op: str, parameters: tuple[str, ...], kernel: Any, *, by_keyword: bool) -> None:
        self._op = op
        self._parameters = parameters
        self._kernel = kernel
        self._by_keyword = by_keyword

    def __getitem__(self, grid: Any) -> KernelAdapter:
        """For kernels that are launched as ``kernel[grid](…)``."""
        return KernelAdapter(self._op, self._parameters, self._kernel[grid], by_keyword=self._by_keyword)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = dict(zip(self._parameters, args, strict=False))
        unknown = [name for name in kwargs if name not in self._parameters or name in values]
        values.update(kwargs)
        if unknown or len(values) != len(self._parameters) or len(args) > len(self._parameters):
            raise TypeError(
                f"op {self._op!r} takes ({', '.join(self._parameters)}); "
                f"got {len(args)} positional and {sorted(kwargs)} by keyword"
            )
        if self._by_keyword:
            return self._kernel(**values)
        return self._kernel(*(values[name] for name in self._parameters))
