"""Which suite checks the plugins of which group. Importable without torch."""

from __future__ import annotations

from corefw.plugin_system.loading import attribute_of
from corefw.testing.suite import Suite

__all__ = ["SUITES", "suite_of"]

SUITES: dict[str, str] = {
    "general_plugins": "corefw.testing.hook_module_suite:HookModuleSuite",
    "platform_plugins": "corefw.testing.platform_suite:PlatformSuite",
    "model_sources": "corefw.testing.model_source_suite:ModelSourceSuite",
    "model_loaders": "corefw.testing.model_loader_suite:ModelLoaderSuite",
    "model_plugins": "corefw.testing.model_suite:ModelSuite",
    "model_implementations": "corefw.testing.model_suite:ModelImplementationSuite",
    "schedulers": "corefw.testing.scheduler_suite:SchedulerSuite",
    "scheduler_strategies": "corefw.testing.scheduler_suite:SchedulingDecisionSuite",
    "kv_cache_specs": "corefw.testing.kv_cache_spec_suite:KVCacheSpecSuite",
    "kv_connectors": "corefw.testing.kv_connector_suite:KVConnectorSuite",
    "core_launchers": "corefw.testing.core_launcher_suite:CoreLauncherSuite",
    "executors": "corefw.testing.executor_suite:ExecutorSuite",
    "attention_backends": "corefw.testing.attention_suite:AttentionBackendSuite",
    "communicators": "corefw.testing.communicator_suite:CommunicatorSuite",
    "op_providers": "corefw.testing.op_provider_suite:OpProviderSuite",
    "quantization_methods": "corefw.testing.quantization_suite:QuantizationMethodSuite",
    "logits_processors": "corefw.testing.logits_processor_suite:LogitsProcessorSuite",
    "endpoint_plugins": "corefw.testing.endpoint_suite:EndpointSuite",
    "io_processor_plugins": "corefw.testing.io_processor_suite:IOProcessorSuite",
    "stat_logger_plugins": "corefw.testing.stat_logger_suite:StatLoggerSuite",
}
"""By group; values are ``module:Class``."""


def suite_of(group: str) -> type[Suite]:
    """The suite of a group.

    Raises:
        KeyError: the group has none: it is reserved.
    """
    found = attribute_of(SUITES[group])
    assert isinstance(found, type)
    assert issubclass(found, Suite)
    return found
