"""From measured memory to a runtime plan: groups, number of blocks, the context length that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.config.engine_config import EngineConfig
from corefw.config.runtime_plan import RuntimePlan
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.errors import ConfigError
from corefw.interfaces.executor import WorkerReport
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["plan_runtime"]

logger = get_logger(__name__)

Decision = tuple[str, str, str]
_MIN_BLOCKS = 2  # the null block, and one to work with
_MIN_MODEL_LEN = 2  # a token of prompt, and one of output
# A context shortened to less than this, or to less than this share of the model's own, surprises whoever sends prompts.
_ODDLY_SHORT, _ODD_SHARE = 512, 0.25
_MAX_STRETCH = 1.25  # up to so much more layers than the smallest kind has, a kind of layers stays one group


@dataclass(frozen=True, slots=True)
class _Group:
    spec: KVCacheSpec
    layers: tuple[str, ...]


def plan_runtime(
    config: EngineConfig, reports: Sequence[WorkerReport], plugins: PluginManager
) -> tuple[RuntimePlan, list[KVCacheSpec]]:
    """Size the KV cache for all ranks alike.

    Every rank gets the same number of blocks: what the rank with the least room holds. A block belongs to one group at
    a time and takes a page in each of its layers. Groups with pages of one size use the same memory: the first layers
    of all of them have the same pages, told apart by who holds the block, and so have the second ones, and so on.

    Args:
        config: what the user set.
        reports: one a rank.
        plugins: for the plugins of the specs.

    Returns:
        The plan, and one spec a KV-cache group in the order of ``plan.layer_groups``.

    Raises:
        ConfigError: a spec has no plugin, memory doesn't hold two blocks, or not the context length that was set.
    """
    if not reports:
        raise ConfigError("no worker reported its KV-cache layers; the executor gave no report")
    registry = SpecRegistry.from_plugins(plugins)
    groups = _group_layers(reports, registry)
    num_blocks, decision = _count_blocks(config, reports, groups)
    bytes_per_block = max(_bytes_per_block(report, groups) for report in reports)
    max_model_len, fitted = _fit_length(config, groups, registry, num_blocks, bytes_per_block)
    plan = RuntimePlan(
        num_blocks=num_blocks,
        block_size=math.gcd(*(group.spec.block_size for group in groups)),
        max_model_len=max_model_len,
        kv_cache_bytes=num_blocks * bytes_per_block,
        attention_backend=reports[0].attention_backend,
        layer_groups=tuple(group.layers for group in groups),
        group_block_sizes=tuple(group.spec.block_size for group in groups),
        decisions=(*reports[0].decisions, *_describe(groups, registry), decision, *fitted),
    )
    return plan, [group.spec for group in groups]


def _group_layers(reports: Sequence[WorkerReport], registry: SpecRegistry) -> list[_Group]:
    """Layers that can share a block table and have pages of one size, in the order in which the ranks name them."""
    kinds: dict[str, Hashable] = {}
    # By kind and size of page.
    specs: dict[tuple[Hashable, int], KVCacheSpec] = {}
    layers: dict[tuple[Hashable, int], list[str]] = {}
    for rank, report in enumerate(reports):
        for layer, spec in report.kv_cache_specs.items():
            kind = registry.resolve(spec).group_key(spec)
            if layer in kinds:
                if kinds[layer] != kind:
                    raise ConfigError(
                        f"layer {layer} has another kind of KV cache on rank {rank} than on one before it"
                    )
                continue
            kinds[layer] = kind
            key = (kind, spec.page_bytes)
            specs.setdefault(key, spec)
            layers.setdefault(key, []).append(layer)
    if not specs:
        raise ConfigError("the model has no layer with a KV cache; this scheduler can't serve it")
    return [
        _Group(specs[key], tuple(names[start : start + size]))
        for key, names in layers.items()
        for size in [_layers_per_group([len(layers[other]) for other in layers if other[1] == key[1]])]
        for start in range(0, len(names), size)
    ]


def _layers_per_group(num_layers: Sequence[int]) -> int:
    """How many layers a group of each kind has, where the kinds have so many layers and share memory.

    A block of a group with fewer layers than another one leaves pages unused. So the kind with the fewest layers makes
    one group and the others are cut into groups of that size; kinds of nearly equal size aren't worth cutting.
    """
    fewest, most = min(num_layers), max(num_layers)
    return most if most <= _MAX_STRETCH * fewest else fewest


def _bytes_per_block(report: WorkerReport, groups: Sequence[_Group]) -> int:
    """What a block takes on a rank: for each size of page as many as the largest group has layers there."""
    pages: dict[int, int] = {}
    for group in groups:
        sizes = [report.kv_cache_specs[name].page_bytes for name in group.layers if name in report.kv_cache_specs]
        if sizes:
            pages[sizes[0]] = max(pages.get(sizes[0], 0), len(sizes))
    return sum(page_bytes * count for page_bytes, count in pages.items())


def _describe(groups: Sequence[_Group], registry: SpecRegistry) -> list[Decision]:
    if len(groups) == 1:
        return []
    kinds: dict[str, list[int]] = {}
    for group in groups:
        kinds.setdefault(type(registry.resolve(group.spec)).__name__, []).append(len(group.layers))
    parts = [f"{len(sizes)} of {max(sizes)} layers ({name})" for name, sizes in kinds.items()]
    return [("kv_cache_groups", str(len(groups)), ", ".join(parts))]


def _count_blocks(
    config: EngineConfig, reports: Sequence[WorkerReport], groups: Sequence[_Group]
) -> tuple[int, Decision]:
    override, memory = config.cache.num_gpu_blocks_override, config.cache.kv_cache_memory
    room = {
        rank: max(0, memory or report.available_kv_bytes) // _bytes_per_block(report, groups)
        for rank, report in enumerate(reports)
        if report.kv_cache_specs
    }
    rank = min(room, key=room.__getitem__)
    num_blocks = room[rank]
    if override is not None:
        return override, ("num_blocks", str(override), f"--num-gpu-blocks-override (memory would give {num_blocks})")
    source = "--kv-cache-memory" if memory else f"the platform's share of what a dummy run left free on rank {rank}"
    available = f"{max(0, memory or reports[rank].available_kv_bytes)} bytes ({source})"
    bytes_per_block = _bytes_per_block(reports[rank], groups)
    if num_blocks < _MIN_BLOCKS:
        raise ConfigError(
            f"the KV cache needs at least {_MIN_BLOCKS} blocks of {bytes_per_block} bytes and has {available}; raise "
            f"--kv-cache-memory, free memory, or lower --block-size"
        )
    return num_blocks, ("num_blocks", str(num_blocks), f"{available}, {bytes_per_block} a block")


def _fit_length(
    config: EngineConfig, groups: Sequence[_Group], registry: SpecRegistry, num_blocks: int, bytes_per_block: int
) -> tuple[int, tuple[Decision, ...]]:
    """The context length, shortened to what one request alone can hold, unless the user insists on it."""

    max_step_tokens = config.max_in_flight_tokens

    def wanted_blocks(num_tokens: int) -> int:
        return sum(
            registry.resolve(group.spec).max_blocks_held(group.spec, num_tokens, max_step_tokens) for group in groups
        )

    asked = config.max_model_len
    if asked < _MIN_MODEL_LEN:
        raise ConfigError(
            f"a context of {asked} has no room for a prompt and an output; "
            f"--max-model-len (and the model) must have at least {_MIN_MODEL_LEN} tokens"
        )
    usable = num_blocks - 1  # without the null block
    if wanted_blocks(asked) <= usable:
        return asked, ()
    fitting = _largest(asked, lambda num_tokens: wanted_blocks(num_tokens) <= usable)
    wanted = wanted_blocks(asked)
    shortage = (
        f"{asked} tokens need {wanted} KV blocks ({wanted * bytes_per_block} bytes), usable are {usable} "
        f"({usable * bytes_per_block} bytes)"
    )
    if config.model.max_model_len is not None or fitting < _MIN_MODEL_LEN:
        raise ConfigError(
            f"a context of {shortage}; the longest that fits is {fitting}, at least {_MIN_MODEL_LEN} make sense. "
            f"{_how_to_help(config)}"
        )
    if fitting < max(_ODDLY_SHORT, _ODD_SHARE * asked):
        remedy = _how_to_hold_all(config, wanted + 1, bytes_per_block)
        logger.warning(
            "the context is only %d tokens long, since the KV cache holds no more; the model's own is %d. %s",
            fitting,
            asked,
            remedy,
        )
    return fitting, (("max_model_len", str(fitting), f"the model declares {asked}, but {shortage}"),)


def _how_to_help(config: EngineConfig) -> str:
    if config.cache.num_gpu_blocks_override is not None:
        return "Raise or leave out --num-gpu-blocks-override, or lower --max-model-len"
    return "Raise --kv-cache-memory (or free memory), or lower --max-model-len"


def _how_to_hold_all(config: EngineConfig, num_blocks: int, bytes_per_block: int) -> str:
    if config.cache.num_gpu_blocks_override is not None:
        return f"Leave out --num-gpu-blocks-override or raise it, to {num_blocks} for all of it"
    return f"Raise --kv-cache-memory (or free memory), to {-(-num_blocks * bytes_per_block // 2**20)}MiB for all of it"


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number in [0, high) that fits; what is smaller than one that fits, fits too."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
