"""The one table of plugin groups. It drives discovery, process scope, type checks, documentation and the report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corefw.errors import PluginError
from corefw.plugin_system.names import suggestion

__all__ = ["GROUPS", "GROUPS_BY_NAME", "PREFIX", "Cardinality", "DefaultPolicy", "Group", "Process", "group_named"]

PREFIX = "corefw."


class Process(StrEnum):
    """Where plugins are loaded."""

    FRONT_END = "front_end"
    ENGINE_CORE = "engine_core"
    WORKER = "worker"
    CLI = "cli"


class DefaultPolicy(StrEnum):
    """What happens to a plugin of a group while no allowlist speaks of it."""

    LOAD = "load"
    ON_NAME = "on name"
    DENY = "deny"


class Cardinality(StrEnum):
    """How many plugins of a group serve at once."""

    ONE = "one"
    ONE_PER_NAME = "one per name"
    ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A kind of plugin.

    Attributes:
        name: the entry-point group, without the prefix ``corefw.``.
        what: the noun under which choices among its plugins are recorded.
        processes: where it is loaded.
        policy: what happens while no allowlist speaks.
        cardinality: how many serve at once.
        description: one sentence.
        interface: ``module:Class`` that a plugin's class derives from; None where any class (or hook module) will do.
        api_versions: lowest and highest version of the interface that this corefw accepts.
        reserved: its consumer isn't built yet, so a plugin of it is unavailable.
        docs: the page for its authors, in the repository.
    """

    name: str
    what: str
    processes: tuple[Process, ...]
    policy: DefaultPolicy
    cardinality: Cardinality
    description: str
    interface: str | None = None
    api_versions: tuple[int, int] = (1, 1)
    reserved: bool = False
    docs: str = "docs/plugins.md"

    @property
    def entry_point_group(self) -> str:
        """The name under which distributions register: ``corefw.<name>``."""
        return PREFIX + self.name


_EVERYWHERE = (Process.FRONT_END, Process.ENGINE_CORE, Process.WORKER, Process.CLI)
_FRONT = (Process.FRONT_END,)
_CORE = (Process.ENGINE_CORE,)
_WORKER = (Process.WORKER,)
_CORE_AND_WORKER = (Process.ENGINE_CORE, Process.WORKER)
_LOAD, _ON_NAME, _DENY = DefaultPolicy.LOAD, DefaultPolicy.ON_NAME, DefaultPolicy.DENY
_ONE, _PER_NAME, _ALL = Cardinality.ONE, Cardinality.ONE_PER_NAME, Cardinality.ALL

_IN_USE = (
    Group(
        name="general_plugins",
        what="general plugin",
        processes=_EVERYWHERE,
        policy=_LOAD,
        cardinality=_ALL,
        description="Hook modules, and plain functions that register something by side effect.",
        docs="docs/plugins/general.md",
    ),
    Group(
        name="platform_plugins",
        what="platform",
        processes=_EVERYWHERE,
        policy=_LOAD,
        cardinality=_ONE,
        description="Hardware: what there is, its defaults, and how a worker drives it.",
        interface="corefw.interfaces.platform:Platform",
        docs="docs/plugins/platform.md",
    ),
    Group(
        name="model_sources",
        what="model source",
        processes=_EVERYWHERE,
        policy=_LOAD,
        cardinality=_ONE,
        description="Ways to name a model: turns a reference into local files.",
        interface="corefw.interfaces.model_source:ModelSource",
        docs="docs/plugins/model_source.md",
    ),
    Group(
        name="model_loaders",
        what="model loader",
        processes=_EVERYWHERE,
        policy=_LOAD,
        cardinality=_ONE,
        description="File formats: reads a model's header and its weights.",
        interface="corefw.interfaces.model_loader:ModelLoader",
        docs="docs/plugins/model_loader.md",
    ),
    Group(
        name="model_plugins",
        what="model",
        processes=_EVERYWHERE,
        policy=_ON_NAME,
        cardinality=_PER_NAME,
        description="Model classes, by the architecture name in a checkpoint.",
        docs="docs/plugins/model.md",
    ),
    Group(
        name="model_implementations",
        what="model implementation",
        processes=_EVERYWHERE,
        policy=_LOAD,
        cardinality=_ONE,
        description="Ways to compute architectures that have no model class.",
        interface="corefw.interfaces.model:ModelImplementation",
        docs="docs/plugins/model.md",
    ),
    Group(
        name="schedulers",
        what="scheduler",
        processes=_CORE,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Decides each step: which requests compute how many tokens.",
        interface="corefw.interfaces.scheduler:Scheduler",
        docs="docs/plugins/scheduling.md",
    ),
    Group(
        name="scheduler_strategies",
        what="scheduling policy",
        processes=_CORE,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Order of the queue, choice of the victim, admission and chunk size.",
        interface="corefw.interfaces.scheduler:SchedulingDecision",
        docs="docs/plugins/scheduling.md",
    ),
    Group(
        name="kv_cache_specs",
        what="KV cache spec",
        processes=_CORE,
        policy=_LOAD,
        cardinality=_ALL,
        description="Kinds of layer state and how their blocks are managed.",
        interface="corefw.interfaces.kv_cache:KVCacheSpecPlugin",
        docs="docs/plugins/kv_cache_spec.md",
    ),
    Group(
        name="kv_connectors",
        what="KV connector",
        processes=_CORE_AND_WORKER,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Moves KV blocks to and from other engines and stores.",
        interface="corefw.interfaces.kv_connector:KVConnector",
        docs="docs/plugins/kv_connector.md",
    ),
    Group(
        name="executors",
        what="executor",
        processes=_CORE,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Owns the workers and runs the scheduler's steps on them.",
        interface="corefw.interfaces.executor:Executor",
        docs="docs/plugins/executor.md",
    ),
    Group(
        name="core_launchers",
        what="core launcher",
        processes=_FRONT,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Starts engine cores, on this machine or elsewhere, and tells when one has gone.",
        interface="corefw.interfaces.core_launcher:CoreLauncher",
        docs="docs/plugins/core_launcher.md",
    ),
    Group(
        name="attention_backends",
        what="attention backend",
        processes=_CORE_AND_WORKER,
        policy=_LOAD,
        cardinality=_ONE,
        description="Attention over paged KV: capabilities, metadata, kernels.",
        interface="corefw.interfaces.attention:AttentionBackend",
        docs="docs/plugins/attention_backend.md",
    ),
    Group(
        name="communicators",
        what="communicator",
        processes=_WORKER,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Collective operations between the ranks of a group.",
        interface="corefw.interfaces.communicator:Communicator",
        docs="docs/plugins/communicator.md",
    ),
    Group(
        name="op_providers",
        what="op",
        processes=_WORKER,
        policy=_LOAD,
        cardinality=_ALL,
        description="Kernels for named ops.",
        interface="corefw.interfaces.op_provider:OpProvider",
        docs="docs/plugins/op_provider.md",
    ),
    Group(
        name="quantization_methods",
        what="quantization method",
        processes=_EVERYWHERE,
        policy=_ON_NAME,
        cardinality=_PER_NAME,
        description="Ways to hold weights in fewer bits, from the checkpoint or made while loading.",
        interface="corefw.interfaces.quantization:QuantizationMethod",
        docs="docs/plugins/quantization_method.md",
    ),
    Group(
        name="logits_processors",
        what="logits processor",
        processes=_WORKER,
        policy=_ON_NAME,
        cardinality=_PER_NAME,
        description="Changes logits at a fixed place in the sampling chain.",
        interface="corefw.interfaces.logits_processor:LogitsProcessor",
        docs="docs/plugins/logits_processor.md",
    ),
    Group(
        name="endpoint_plugins",
        what="endpoint",
        processes=_FRONT,
        policy=_DENY,
        cardinality=_ALL,
        description="HTTP routes; denied by default, since they widen the network surface.",
        interface="corefw.interfaces.endpoint:Endpoint",
        docs="docs/plugins/endpoint.md",
    ),
    Group(
        name="io_processor_plugins",
        what="IO processor",
        processes=_FRONT,
        policy=_ON_NAME,
        cardinality=_ONE,
        description="Parses a request's own input format and shapes its output.",
        interface="corefw.interfaces.io_processor:IOProcessor",
        docs="docs/plugins/io_processor.md",
    ),
    Group(
        name="stat_logger_plugins",
        what="stat logger",
        processes=_FRONT,
        policy=_LOAD,
        cardinality=_ALL,
        description="Receives the engine's figures and those of each request.",
        interface="corefw.interfaces.stat_logger:StatLogger",
        docs="docs/plugins/stat_logger.md",
    ),
)


def _reserved(
    name: str,
    what: str,
    processes: tuple[Process, ...],
    policy: DefaultPolicy,
    cardinality: Cardinality,
    description: str,
) -> Group:
    return Group(
        name=name,
        what=what,
        processes=processes,
        policy=policy,
        cardinality=cardinality,
        description=description,
        reserved=True,
    )


_CORE_AND_FRONT = (Process.FRONT_END, Process.ENGINE_CORE)
_CLI = (Process.CLI,)

_RESERVED = (
    _reserved(
        "model_extensions",
        "model extension",
        _EVERYWHERE,
        _LOAD,
        _ALL,
        "Additions to a loaded model, such as adapters, with their own cache keys and admission.",
    ),
    _reserved(
        "structured_output_backends",
        "structured output backend",
        _CORE,
        _ON_NAME,
        _ONE,
        "Grammars that constrain what is sampled.",
    ),
    _reserved(
        "proposers",
        "proposer",
        _WORKER,
        _ON_NAME,
        _ONE,
        "Drafts tokens for speculative decoding.",
    ),
    _reserved(
        "compilers",
        "compiler",
        _WORKER,
        _ON_NAME,
        _ONE,
        "Compiles the pieces of a captured model and loads them from the cache.",
    ),
    _reserved(
        "tool_parsers",
        "tool parser",
        _FRONT,
        _ON_NAME,
        _ONE,
        "Finds tool calls in generated text.",
    ),
    _reserved(
        "reasoning_parsers",
        "reasoning parser",
        _CORE_AND_FRONT,
        _ON_NAME,
        _ONE,
        "Separates a model's reasoning from its answer.",
    ),
    _reserved(
        "adapter_resolvers",
        "adapter resolver",
        _FRONT,
        _DENY,
        _ALL,
        "Fetches adapters at run time; denied by default, since it downloads weights.",
    ),
    _reserved(
        "cli_commands",
        "command",
        _CLI,
        _LOAD,
        _PER_NAME,
        "Further commands of the command line.",
    ),
)

GROUPS: tuple[Group, ...] = _IN_USE + _RESERVED
GROUPS_BY_NAME: dict[str, Group] = {group.name: group for group in GROUPS}


def group_named(name: str) -> Group:
    """The group of that name, with or without the prefix ``corefw.``.

    Raises:
        PluginError: there is no such group; names the nearest.
    """
    group = GROUPS_BY_NAME.get(name.removeprefix(PREFIX))
    if group is None:
        raise PluginError(f"there is no plugin group {name[:80]!r}; {suggestion(name, GROUPS_BY_NAME)}")
    return group
