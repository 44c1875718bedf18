"""What every way to run a model begins with: plugins, configuration, renderer."""

from __future__ import annotations

from dataclasses import dataclass

from corefw.config.args import UserArgs
from corefw.config.engine_config import EngineConfig
from corefw.engine.resolver import resolve_config, with_tokenizer_size
from corefw.frontend.io_processing import IOProcessing
from corefw.frontend.renderer import Renderer
from corefw.frontend.request_hooks import RequestHooks
from corefw.models.loading.gguf_file import files_shared
from corefw.plugin_system.manager import PluginManager
from corefw.plugin_system.settings import restore_settings

__all__ = ["Prepared", "discover_plugins", "prepare", "prepare_again"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that the front end has before a core exists; ``processing`` is None without an IO processor."""

    config: EngineConfig
    renderer: Renderer
    plugins: PluginManager
    processing: IOProcessing | None = None


def discover_plugins(args: UserArgs) -> PluginManager:
    """The plugins that the user allows, with the general ones loaded.

    Raises:
        ConfigError, PluginError: a setting can't be honoured.
    """
    section = args.section("plugins")
    plugins = PluginManager.discover(
        section.get("plugins"), section.get("plugin_policy", "normal"), section.get("plugin_lock")
    )
    plugins.load_general("front_end")
    return plugins


def prepare_again(config: EngineConfig) -> Prepared:
    """The same in another process, from what one has resolved.

    Raises:
        ConfigError, PluginError: this process finds other plugins, or one can't be loaded.
    """
    plugins = PluginManager.from_resolved(config.plugins.resolved, config.plugins.plugin_policy)
    plugins.load_general("front_end")
    restore_settings(plugins, config.plugin_settings)
    hooks = RequestHooks.collect(plugins, config)
    with files_shared():
        renderer = Renderer(config.model_info, config.model, config.frontend, hooks)
    return Prepared(config, renderer, plugins, IOProcessing.choose(plugins, config, renderer))


def prepare(args: UserArgs, plugins: PluginManager | None = None, *, interactive: bool = True) -> Prepared:
    """Resolve what the user said.

    Args:
        args: what the user said.
        plugins: from ``discover_plugins``, where somebody needed them before.
        interactive: somebody waits for single tokens; else whole results count.

    Raises:
        ConfigError, PluginError: a setting can't be honoured.
    """
    plugins = plugins or discover_plugins(args)
    with files_shared():
        config = resolve_config(args, plugins, interactive=interactive)
        hooks = RequestHooks.collect(plugins, config)
        renderer = Renderer(config.model_info, config.model, config.frontend, hooks)
    config = with_tokenizer_size(config, renderer.tokenizer.vocab_size)
    return Prepared(config, renderer, plugins, IOProcessing.choose(plugins, config, renderer))
