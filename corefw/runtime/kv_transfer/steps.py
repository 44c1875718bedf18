"""The connector's calls in the worker's steps, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec
from torch import nn

from corefw.errors import ConfigError
from corefw.interfaces.kv_connector import KVCaches, WorkerConnector, connector_setup
from corefw.messages.kv_transfer import TransferResults
from corefw.observability.logging import get_logger
from corefw.plugin_system.failure_log import FailureLog
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.runtime.kv_transfer.fingerprint import layout_fingerprint

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.interfaces.attention import AttentionBackend
    from corefw.interfaces.kv_cache import KVCacheSpec
    from corefw.interfaces.kv_connector import KVConnector
    from corefw.messages.outputs import ModelRunnerOutput
    from corefw.messages.request import PlainDict
    from corefw.plugin_system.manager import PluginManager
    from corefw.runtime.kv_pages import KVPages

__all__ = ["KVTransferSteps", "make_transfer_steps"]

P = ParamSpec("P")

_log = get_logger(__name__)


class KVTransferSteps:
    """Brackets steps and the attention layers in them. What the connector raises never stops a step: it is reported,
    and the scheduler does without what was to be loaded.

    Args:
        connector: the rank's half.
        layers: the attention layers by name; each gets a hook before and one after its forward pass.
        rank: the worker's.
    """

    def __init__(self, connector: WorkerConnector, layers: Mapping[str, object], rank: int) -> None:
        self._connector = connector
        self._failures = FailureLog(f"KV connector {type(connector).__name__}", _log)
        self._rank = rank
        self._names = tuple(layers)
        # Layers that the step hasn't come to; None outside a step.
        self._to_come: dict[str, None] | None = None
        self._broken = False
        for name, layer in layers.items():
            self._hook(name, layer)

    def handshake(self) -> PlainDict | None:
        """What the connector tells its other half.

        Raises:
            PluginError: it failed.
        """
        what = f"KV connector {type(self._connector).__name__}"
        return made_by_plugin(what, (dict, type(None)), self._connector.handshake)

    @property
    def is_under_way(self) -> bool:
        """Whether the connector takes part in the layers of the step that was begun."""
        return self._to_come is not None

    def settle(self) -> None:
        """Finish a step that an error cut short, so that nothing of it touches pages any more."""
        if self._to_come is not None:
            self._end()

    def begin(self, metadata: PlainDict | None) -> None:
        """Start the loads of a step whose new blocks are cleared already."""
        if metadata is not None:
            self._to_come = dict.fromkeys(self._names)
            self._guard(self._connector.start_load, metadata)

    def finish(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """End the step; its result with what the connector has to tell."""
        if self._to_come is not None:
            self._end()
        results = self._guard(_asked_results, self._connector)
        broken, self._broken = self._broken, False
        if results is None and not broken:
            return output
        told = msgspec.structs.replace(results or TransferResults(), rank=self._rank, broken=broken)
        return msgspec.structs.replace(output, transfers=(*output.transfers, told))

    def shutdown(self) -> None:
        """Stop the connector. May be called twice."""
        self._guard(self._connector.shutdown)

    def _end(self) -> None:
        # A step without tokens has no forward pass, one that failed only a part of it.
        for name in self._to_come or ():
            self._guard(self._connector.wait_layer, name)
        self._to_come = None
        self._guard(self._connector.wait_save)

    def _hook(self, name: str, layer: object) -> None:
        if not isinstance(layer, nn.Module):
            raise ConfigError(f"attention layer {name} is no torch module, so --kv-connector can't be served")

        def before(_layer: nn.Module, _inputs: Any) -> None:
            if self._to_come is not None:
                self._to_come.pop(name, None)
                self._guard(self._connector.wait_layer, name)

        def after(_layer: nn.Module, _inputs: Any, _output: Any) -> None:
            if self._to_come is not None:
                self._guard(self._connector.save_layer, name)

        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)

    def _guard(self, call: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        method = getattr(call, "__name__", "a call")
        try:
            answer = call(*args, **kwargs)
        except (Exception, SystemExit) as error:  # the plugin border
            self._broken = True
            self._failures.failed(method, error)
            return None
        self._failures.worked(method)
        return answer


def _asked_results(connector: WorkerConnector) -> TransferResults | None:
    """What the connector reports, checked: the scheduler counts on it."""
    results: object = connector.results()
    if results is None:
        return None
    if not isinstance(results, TransferResults):
        raise TypeError(f"results returned {type(results).__name__}; it takes TransferResults, or None")
    return msgspec.convert(msgspec.to_builtins(results), TransferResults)


def make_transfer_steps(
    config: EngineConfig,
    plan: RuntimePlan,
    plugins: PluginManager,
    *,
    pages: KVPages,
    layers: Mapping[str, object],
    backend: type[AttentionBackend],
    specs: Mapping[str, KVCacheSpec],
    block_sizes: Iterable[int],
    rank: int,
) -> KVTransferSteps | None:
    """The worker's side of the configured connector; None without one: then no layer has a hook.

    Args:
        pages: the cache.
        layers: attention layers by name.
        backend: how it sees pages.
        specs: by layer name.
        block_sizes: by KV-cache group.
        rank: the worker's.

    Raises:
        ConfigError, PluginError: the connector can't be had, or can't serve this worker.
    """
    name = config.kv_transfer.kv_connector
    if name is None:
        return None
    connector: type[KVConnector] = plugins.get("kv_connectors", name, setting="--kv-connector")
    setup = connector_setup(connector, config, plan, tuple(block_sizes), rank)
    what = whose(plugins, "kv_connectors", name)
    half = made_by_plugin(what, WorkerConnector, connector.worker, setup)
    fingerprint = layout_fingerprint(config, backend, specs, rank, setup.num_ranks)
    caches = KVCaches(layers=pages.raw_layers(), fingerprint=fingerprint)
    made_by_plugin(what, type(None), half.register_caches, caches)
    return KVTransferSteps(half, layers, rank)
