"""The kinds of plugins that ``corefw plugins new`` writes: what each consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of plugin. Texts have the placeholders of its templates (``$name``, ``$class_name`` …).

    Attributes:
        entries: by group, the name and value of the entry point, without the package.
        modules: of the package; each is a template.
        interface: what the author has to read.
        suite: class of the conformance suite.
        description: of the distribution.
        serve: flags with which it runs.
    """

    entries: Mapping[str, tuple[str, str]]
    modules: tuple[str, ...]
    interface: str
    suite: str
    description: str
    serve: str


def _kind(
    group: str,
    module: str,
    interface: str,
    suite: str,
    description: str,
    serve: str,
    *,
    attribute: str = ":$class_name",
    further: tuple[str, ...] = (),
    entries: Mapping[str, tuple[str, str]] | None = None,
) -> Kind:
    return Kind(
        entries={group: ("$name", module + attribute), **(entries or {})},
        modules=(module, *further),
        interface=f"corefw/interfaces/{interface}",
        suite=f"corefw.testing.{suite}",
        description=description,
        serve=serve,
    )


KINDS: dict[str, Kind] = {
    "platform": _kind(
        "platform_plugins",
        "platform",
        "platform.py",
        "platform_suite.PlatformSuite",
        "A platform for corefw: hardware and how it is driven",
        "--platform $name",
        further=("device",),
    ),
    "attention-backend": _kind(
        "attention_backends",
        "attention",
        "attention.py",
        "attention_suite.AttentionBackendSuite",
        "An attention backend for corefw",
        "--attention-backend $name --dtype float32",
    ),
    "op-provider": _kind(
        "op_providers",
        "ops",
        "op_provider.py",
        "op_provider_suite.OpProviderSuite",
        "Kernels for ops of corefw",
        "--dtype float32",
    ),
    "quantization-method": _kind(
        "quantization_methods",
        "method",
        "quantization.py",
        "quantization_suite.QuantizationMethodSuite",
        "A way to hold weights in fewer bits for corefw",
        "FOLDER --quantization $name",
    ),
    "communicator": _kind(
        "communicators",
        "communicator",
        "communicator.py",
        "communicator_suite.CommunicatorSuite",
        "A communicator for corefw: moves tensors among ranks",
        "--communicator $name --tensor-parallel-size 2",
    ),
    "kv-connector": _kind(
        "kv_connectors",
        "connector",
        "kv_connector.py",
        "kv_connector_suite.KVConnectorSuite",
        "A KV connector for corefw: keeps blocks in files",
        """--kv-connector $name --kv-connector-config '{"path": "/tmp/$name"}'""",
        further=("worker",),
    ),
    "io-processor": _kind(
        "io_processor_plugins",
        "processor",
        "io_processor.py",
        "io_processor_suite.IOProcessorSuite",
        "An IO processor for corefw: an input of its own form, and the answer to it",
        "--io-processor-plugin $name",
    ),
    "endpoint": _kind(
        "endpoint_plugins",
        "endpoint",
        "endpoint.py",
        "endpoint_suite.EndpointSuite",
        "Routes for the corefw server",
        "--plugins +$name",
    ),
    "general": _kind(
        "general_plugins",
        "hooks",
        "hooks",
        "hook_module_suite.HookModuleSuite",
        "Hooks for corefw",
        "--$name.max-prompt-tokens 1000",
        attribute="",
    ),
    "logits-processor": _kind(
        "logits_processors",
        "processor",
        "logits_processor.py",
        "logits_processor_suite.LogitsProcessorSuite",
        "A logits processor for corefw",
        "--logits-processors $name",
        further=("hooks",),
        entries={"general_plugins": ("$name", "hooks")},
    ),
    "strategy": _kind(
        "scheduler_strategies",
        "strategy",
        "scheduler.py",
        "scheduler_suite.SchedulingDecisionSuite",
        "Decisions of corefw's scheduler",
        "--scheduling-policy $name",
    ),
    "model": _kind(
        "model_plugins",
        "model",
        "model.py",
        "model_suite.ModelSuite",
        "A model class for corefw",
        "FOLDER",
    ),
    "loader": _kind(
        "model_loaders",
        "loader",
        "model_loader.py",
        "model_loader_suite.ModelLoaderSuite",
        "A file format of models for corefw",
        "$name:FOLDER",
        further=("source",),
        entries={"model_sources": ("$name", "source:${class_name}Folder")},
    ),
    "stat-logger": _kind(
        "stat_logger_plugins",
        "stats",
        "stat_logger.py",
        "stat_logger_suite.StatLoggerSuite",
        "A logger of corefw's figures",
        "--plugins +$name",
    ),
    "source": _kind(
        "model_sources",
        "source",
        "model_source.py",
        "model_source_suite.ModelSourceSuite",
        "A way to name models for corefw",
        "$name:FOLDER",
    ),
    "kv-cache-spec": _kind(
        "kv_cache_specs",
        "spec",
        "kv_cache.py",
        "kv_cache_spec_suite.KVCacheSpecSuite",
        "A kind of layer state for corefw",
        "FOLDER",
    ),
    "executor": _kind(
        "executors",
        "executor",
        "executor.py",
        "executor_suite.ExecutorSuite",
        "An executor for corefw",
        "--distributed-executor-backend $name",
    ),
    "core-launcher": _kind(
        "core_launchers",
        "launcher",
        "core_launcher.py",
        "core_launcher_suite.CoreLauncherSuite",
        "A launcher of corefw's engine cores",
        "--data-parallel-backend $name",
    ),
    "scheduler": _kind(
        "schedulers",
        "scheduler",
        "scheduler.py",
        "scheduler_suite.SchedulerSuite",
        "A scheduler for corefw",
        "--scheduler $name",
    ),
    "model-implementation": _kind(
        "model_implementations",
        "implementation",
        "model.py",
        "model_suite.ModelImplementationSuite",
        "Computes models that corefw has no class for",
        "FOLDER --model-impl $name",
        further=("model",),
    ),
}
