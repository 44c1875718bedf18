"""The loading chain: what plugins make of each tensor between the model's files and its layers, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from corefw.errors import PluginError
from corefw.interfaces.hooks.loading import (
    WeightFilter,
    WeightTransform,
    corefw_weight_filter,
    corefw_weight_transform,
)

if TYPE_CHECKING:
    import torch

    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.contributions import Contribution
    from corefw.plugin_system.manager import PluginManager

__all__ = ["LoadingChain"]

Weights = Iterator[tuple[str, "torch.Tensor"]]

_MAX_SHOWN = 10
_END = object()


class LoadingChain:
    """Filters, then transforms, each in the plugins' order. Good for one load.

    Attributes:
        skipped: by name of each tensor that a filter left out, whose and why.
    """

    def __init__(
        self, filters: Sequence[Contribution[WeightFilter]], transforms: Sequence[Contribution[WeightTransform]]
    ) -> None:
        self.skipped: dict[str, str] = {}
        self._filters = filters
        self._transforms = transforms
        self._num_out = 0
        self._num_in = 0

    @classmethod
    def of(cls, config: EngineConfig, plugins: PluginManager) -> LoadingChain:
        """What the general plugins of this process contribute."""
        return cls(
            plugins.collect(WeightFilter, corefw_weight_filter, config),
            plugins.collect(WeightTransform, corefw_weight_transform, config),
        )

    def __bool__(self) -> bool:
        return bool(self._filters or self._transforms)

    @property
    def transforms(self) -> bool:
        """Whether a plugin changes tensors, not only leaves some out."""
        return bool(self._transforms)

    def links(self, source: str) -> str:
        """The chain in words, in its order."""
        steps = [
            source,
            *(f"filter {item.owner}" for item in self._filters),
            *(f"transform {item.owner}" for item in self._transforms),
        ]
        return " → ".join(steps)

    def outcome(self) -> str:
        """How many tensors came, which were left out and by whom, and how many went on."""
        listed = [f"{name} ({why})" for name, why in list(self.skipped.items())[:_MAX_SHOWN]]
        more = f" and {len(self.skipped) - _MAX_SHOWN} more" if len(self.skipped) > _MAX_SHOWN else ""
        left_out = f"; left out: {', '.join(listed)}{more}" if listed else ""
        return f"{self._num_in} tensors of the files became {self._num_out}{left_out}"

    def apply(self, weights: Weights) -> Weights:
        """The tensors as the layers get them.

        Raises:
            PluginError: a plugin failed, made no tensors, or two under one name; names plugin and tensor.
        """
        passed = self._kept(weights)
        for item in self._transforms:
            passed = _transformed(item, passed)
        seen: set[str] = set()
        for name, tensor in passed:
            if name in seen:
                owners = ", ".join(item.owner for item in self._transforms) or "none"
                raise PluginError(f"the loading chain makes {name!r} twice (transforms: {owners})")
            seen.add(name)
            self._num_out += 1
            yield name, tensor

    def _kept(self, weights: Weights) -> Weights:
        for name, tensor in weights:
            self._num_in += 1
            why = self._why_skipped(name)
            if why is None:
                yield name, tensor
            else:
                self.skipped[name] = why

    def _why_skipped(self, name: str) -> str | None:
        for item in self._filters:
            try:
                reason = item.value.skip(name)
            except Exception as error:
                raise _failed(item, "filter", name, error) from error
            if reason is not None and not isinstance(reason, str):
                raise PluginError(
                    f"weight filter of plugin {item.owner} gave {reason!r} for {name!r}; it has to say why a tensor is "
                    "left out, or None"
                )
            if reason is not None:
                return f"by plugin {item.owner}: {reason}"
        return None


def _transformed(item: Contribution[WeightTransform], weights: Weights) -> Weights:
    for name, tensor in weights:
        yield from _made(item, name, item.value.transform, name, tensor)
    yield from _made(item, "the end", item.value.finish)


def _made(item: Contribution[WeightTransform], at: str, call: Any, *args: Any) -> Weights:
    """The tensors that a plugin made, checked one by one: it may be a generator."""
    import torch

    try:
        made: Iterator[Any] = iter(call(*args))
    except Exception as error:
        raise _failed(item, "transform", at, error) from error
    while True:
        try:
            pair: Any = next(made, _END)
        except Exception as error:
            raise _failed(item, "transform", at, error) from error
        if pair is _END:
            return
        if not _is_named_tensor(pair, torch.Tensor):
            raise PluginError(
                f"weight transform of plugin {item.owner} at {at!r} gave {type(pair).__name__}; it has to give pairs "
                "of a name and a tensor"
            )
        yield pair


def _is_named_tensor(pair: Any, kind: type) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], kind)


def _failed(item: Contribution[Any], role: str, at: str, error: Exception) -> PluginError:
    return PluginError(f"weight {role} of plugin {item.owner} failed at {at!r}: {type(error).__name__}: {error}")
