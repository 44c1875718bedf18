"""Turns what the user said into the frozen configuration, asking model sources, loaders and platforms. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from corefw import env
from corefw.config.args import SECTIONS, UserArgs
from corefw.config.engine_config import EngineConfig, ModelConfig, ParallelConfig, PluginConfig
from corefw.config.fingerprint import fingerprint_of
from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.engine.parallel_checks import check_communicator, check_fits_machine, check_fits_model
from corefw.engine.plugin_proposals import apply_plugin_proposals, stands_for
from corefw.engine.quantization_choice import choose_quantization, read_quantization_config
from corefw.engine.steps_ahead import choose_steps_ahead
from corefw.errors import ConfigError, ModelSourceError
from corefw.interfaces.hooks.configuration import corefw_fingerprint
from corefw.interfaces.model import ModelRequest
from corefw.interfaces.model_source import SourceOptions
from corefw.interfaces.quantization import QuantizationRequest
from corefw.interfaces.selection import Selection
from corefw.models.loading.hf_config import check_sizes
from corefw.models.registry import choose_implementation
from corefw.plugin_system.making import made_by_plugin, whose
from corefw.plugin_system.selection import by_name, select
from corefw.plugin_system.settings import configure_plugins

if TYPE_CHECKING:
    from corefw.config.device_description import DeviceDescription
    from corefw.interfaces.model_loader import ModelLoader
    from corefw.interfaces.model_source import ModelSource
    from corefw.interfaces.platform import Platform, Proposal
    from corefw.plugin_system.manager import PluginManager

__all__ = ["resolve_config", "resolve_model", "with_tokenizer_size"]

# The sections that platforms and plugins may propose changes to.
_OPEN_SECTIONS = tuple(name for name in SECTIONS if name not in ("server", "device"))


def resolve_config(
    args: UserArgs, plugins: PluginManager, described: DeviceDescription | None = None, *, interactive: bool = True
) -> EngineConfig:
    """The configuration of an engine, with a reason for every choice.

    Args:
        args: explicit settings.
        plugins: the resolved plugin set; recorded with every selection.
        described: for a device that isn't here; such a configuration explains, and doesn't run.
        interactive: see ``Platform.propose``.

    Raises:
        ConfigError: a setting can't be honoured, with what is accepted.
    """
    plugin_settings = configure_plugins(plugins, args.plugin_settings)
    info, selections = resolve_model(args, plugins)
    device = _section(SECTIONS["device"], args.section("device"))
    if described is None:
        platform, selection = _choose_platform(device.platform, plugins)
    else:
        platform, selection = _described_platform(device.platform, plugins, described)
    selections = [*selections, selection]
    _check_parallel(_section(ParallelConfig, args.section("parallel")), interactive)
    what = whose(plugins, "platform_plugins", platform.name)
    proposed = made_by_plugin(what, Sequence, platform.propose, info, args.explicit, interactive=interactive)
    sections, changes = _apply_proposals(args, proposed)
    changes += apply_plugin_proposals(args, sections, info, platform.name, plugins)
    model = read_quantization_config(_section(ModelConfig, sections["model"]))
    dtype, dtype_reason = _choose_dtype(model.dtype, info, platform, what)
    cache_dir = str(env.cache_dir() / "implementations")
    request = ModelRequest(info=info, dtype=dtype, trust_remote_code=model.trust_remote_code, cache_dir=cache_dir)
    implementation, info = choose_implementation(request, plugins, model.model_impl)
    selections = [*selections, implementation]
    check_sizes(info)
    _check_context(model, info)
    for item in selections:
        plugins.record(item)
    quantization, quantization_decisions = choose_quantization(
        model,
        QuantizationRequest(info=info, dtype=dtype, device_type=platform.device_type),
        implementation.chosen,
        plugins,
    )
    made = {
        name: _section(SECTIONS[name], sections[name])
        for name in ("load", "cache", "kv_transfer", "scheduler", "parallel", "compilation", "frontend")
    }
    is_ahead, ahead_decision = choose_steps_ahead(
        made["scheduler"], made["parallel"], made["kv_transfer"], platform, plugins
    )
    made["scheduler"] = dataclasses.replace(made["scheduler"], async_scheduling=is_ahead)
    config = EngineConfig(
        model=model,
        model_info=info,
        dtype=dtype,
        platform=platform.name,
        model_implementation=implementation.chosen,
        quantization=quantization,
        plugins=_section(PluginConfig, {**sections["plugins"], "resolved": plugins.resolved()}),
        decisions=(
            *((item.what, item.chosen, item.why) for item in selections),
            *changes,
            ("dtype", dtype, dtype_reason),
            *quantization_decisions,
            *_rank_decisions(made["parallel"]),
            ahead_decision,
            *_plugin_setting_decisions(args),
        ),
        plugin_settings=plugin_settings,
        **made,
    )
    check_communicator(config.parallel, plugins)
    check_fits_model(config.parallel, info)
    if described is None:
        check_fits_machine(config.parallel)
    return _with_fingerprint(config, plugins)


def resolve_model(args: UserArgs, plugins: PluginManager) -> tuple[ModelInfo, list[Selection]]:
    """Find the model's files and read their headers."""
    model = _section(ModelConfig, args.section("model"))
    load = _section(SECTIONS["load"], args.section("load"))
    reference, named = stands_for(model.model, plugins)
    files, source_selection = _resolve_files(reference, load.revision, plugins)
    loaders: dict[str, ModelLoader] = {plugin.name: plugin.create() for plugin in plugins.load_all("model_loaders")}
    wanted = None if load.load_format == "auto" else load.load_format
    selection = select(
        "model loader",
        [(name, partial(loader.supports, files)) for name, loader in loaders.items()],
        named=wanted,
    )
    what = whose(plugins, "model_loaders", selection.chosen)
    info = made_by_plugin(what, ModelInfo, loaders[selection.chosen].read_info, files)
    return info, [*named, source_selection, selection]


def with_tokenizer_size(config: EngineConfig, num_tokens: int) -> EngineConfig:
    """The same configuration, knowing how many ids the tokenizer has: larger ids are never sampled."""
    return dataclasses.replace(config, tokenizer_size=num_tokens)


def _resolve_files(reference: str, revision: str | None, plugins: PluginManager) -> tuple[ModelFiles, Selection]:
    sources: list[ModelSource] = [plugin.create() for plugin in plugins.load_all("model_sources")]
    sources.sort(key=lambda source: source.rank)
    try:
        selection = select("model source", [(s.name, partial(s.supports, reference)) for s in sources])
    except ConfigError as error:
        raise ModelSourceError(f"the model {reference[:200]!r} can't be found: {error}") from None
    options = SourceOptions(cache_dir=str(env.cache_dir() / "models"), revision=revision, offline=env.hub_offline())
    source = next(s for s in sources if s.name == selection.chosen)
    what = whose(plugins, "model_sources", source.name)
    return made_by_plugin(what, ModelFiles, source.resolve, reference, options), selection


def _choose_platform(named: str | None, plugins: PluginManager) -> tuple[Platform, Selection]:
    """An available external platform goes over a built-in one; two external ones are an error."""
    loaded = sorted(plugins.load_all("platform_plugins"), key=lambda plugin: plugin.builtin)
    platforms: dict[str, Platform] = {plugin.name: plugin.create() for plugin in loaded}
    selection = select("platform", [(name, p.unavailable_reason) for name, p in platforms.items()], named=named)
    external = [plugin.name for plugin in loaded if not plugin.builtin]
    if named is None and selection.chosen in external:
        rivals = [name for name in external if platforms[name].unavailable_reason() is None]
        if len(rivals) > 1:
            raise ConfigError(f"several platforms are available: {', '.join(rivals)}; choose one with --platform")
    return platforms[selection.chosen], selection


def _described_platform(
    named: str | None, plugins: PluginManager, described: DeviceDescription
) -> tuple[Platform, Selection]:
    """The platform that a capability file names, whether or not its hardware is here."""
    name = described.platform
    if named not in (None, name):
        raise ConfigError(f"--platform {named} and the capability file's platform {name} are two; give one")
    platform = plugins.get("platform_plugins", name, setting="the capability file").from_capability(described)
    return platform, by_name("platform", name, plugins.names("platform_plugins"), "the capability file's platform")


def _apply_proposals(
    args: UserArgs, proposals: Sequence[Proposal]
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str, str]]]:
    sections = {name: args.section(name) for name in _OPEN_SECTIONS}
    changes = []
    for proposal in proposals:
        key = f"{proposal.section}.{proposal.field}"
        if key in args.explicit:
            continue
        sections[proposal.section][proposal.field] = proposal.value
        changes.append((key, str(proposal.value), proposal.reason))
    return sections, changes


def _plugin_setting_decisions(args: UserArgs) -> list[tuple[str, str, str]]:
    """Which settings of plugins were given and where; a value may be a secret."""
    return [
        (f"settings of plugin {plugin}", ", ".join(settings), ", ".join(item.label for item in settings.values()))
        for plugin, settings in args.plugin_settings.items()
    ]


def _with_fingerprint(config: EngineConfig, plugins: PluginManager) -> EngineConfig:
    additions = [(item.plugin, item.value) for item in plugins.collect(str, corefw_fingerprint, config)]
    fingerprint = fingerprint_of(config, additions)
    what = "files, arithmetic, versions, plugins and their settings"
    why = f"{what}; with additions of {', '.join(name for name, _ in additions)}" if additions else what
    decisions = (*config.decisions, ("fingerprint", fingerprint, why))
    return dataclasses.replace(config, fingerprint=fingerprint, decisions=decisions)


def _check_parallel(parallel: ParallelConfig, interactive: bool) -> None:
    if interactive and parallel.executor == "external_launcher":
        raise ConfigError(
            "executor external_launcher is for scripts that do the same on every rank; a server's requests come to "
            "one: use --distributed-executor-backend mp"
        )
    for flag, size in (
        ("--prefill-context-parallel-size", parallel.prefill_context_parallel_size),
        ("--decode-context-parallel-size", parallel.decode_context_parallel_size),
    ):
        if size > 1:
            raise ConfigError(f"{flag} {size} needs an attention backend that computes a part of a context; use 1")
    size, rank = parallel.data_parallel_size, parallel.data_parallel_rank
    if rank is not None and rank >= size:
        raise ConfigError(f"--data-parallel-rank {rank} isn't one of --data-parallel-size {size}; they count from 0")


def _rank_decisions(parallel: ParallelConfig) -> tuple[tuple[str, str, str], ...]:
    if parallel.executor == "uni":
        return ()
    sizes = (
        ("tensor", parallel.tensor_parallel_size),
        ("pipeline", parallel.pipeline_parallel_size),
    )
    axes = " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one"
    return (("ranks", str(parallel.grid.replica_size), f"{axes}, run by executor {parallel.executor}"),)


def _check_context(model: ModelConfig, info: ModelInfo) -> None:
    if model.max_model_len is not None and model.max_model_len > info.max_position:
        raise ConfigError(
            f"--max-model-len {model.max_model_len} is more than the {info.max_position} positions that the model "
            f"declares; set at most that"
        )


def _choose_dtype(wanted: str, info: ModelInfo, platform: Platform, what: str) -> tuple[str, str]:
    available = tuple(made_by_plugin(what, Sequence, platform.dtypes))
    if wanted != "auto":
        if wanted not in available:
            raise ConfigError(
                f"--dtype {wanted} isn't available on platform {platform.name}; it has {', '.join(available)}"
            )
        return wanted, "set by --dtype"
    if info.checkpoint_dtype == "block":
        if "bfloat16" in available:
            return "bfloat16", "block-quantised checkpoint, and the device computes in bfloat16"
        return "float32", "block-quantised checkpoint, and the device has no bfloat16"
    if info.checkpoint_dtype in available:
        return info.checkpoint_dtype, "the checkpoint's"
    return available[0], f"the checkpoint's {info.checkpoint_dtype} isn't available on platform {platform.name}"


def _section(owner: type, values: Mapping[str, Any]) -> Any:
    return owner(**values)
