"""Which IO processor serves: one that somebody names, or none. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.errors import ConfigError, PluginError
from corefw.interfaces.selection import Rejected, Selection

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.io_processor import IOProcessor
    from corefw.plugin_system.manager import PluginManager

__all__ = ["IO_PROCESSORS", "choose_io_processor"]

IO_PROCESSORS = "io_processor_plugins"
_WHAT = "IO processor"
_NONE = "none"
_FLAG = "--io-processor-plugin"
_KEY = "io_processor_plugin"


def choose_io_processor(config: EngineConfig, plugins: PluginManager) -> tuple[type[IOProcessor] | None, Selection]:
    """The one that the operator, else the model's configuration names; None where nobody names any.

    Raises:
        ConfigError: it can't do what this model does.
        PluginError: it isn't there, or can't be loaded; names what is installed.
    """
    name, setting = _asked(config)
    installed = plugins.names(IO_PROCESSORS)
    if name is None:
        reason = f"neither {_FLAG} nor {_KEY} in the model's configuration names one"
        return None, _selection(_NONE, installed, reason, "nobody names it")
    if name == _NONE:
        return None, _selection(_NONE, installed, f"the value of {setting}", f"{setting} is {_NONE}")
    _check_installed(name, setting, plugins)
    found: type[IOProcessor] = plugins.get(IO_PROCESSORS, name, setting=setting)
    if "generate" not in found.tasks:
        raise ConfigError(
            f"IO processor {name!r} ({setting}) is for {', '.join(sorted(found.tasks)) or 'nothing'}, but this "
            f"model does generate; choose another one, or {_FLAG} {_NONE}"
        )
    return found, _selection(name, installed, f"the value of {setting}", f"{setting} is {name}")


def _asked(config: EngineConfig) -> tuple[str | None, str]:
    """The name, and who says it."""
    named = config.frontend.io_processor_plugin
    if named is not None:
        return named, _FLAG
    of_model = config.model_info.hf_config.get(_KEY)
    if of_model is not None and not isinstance(of_model, str):
        raise ConfigError(f"{_KEY} in the model's configuration must be a text; {_FLAG} beats it")
    return of_model or None, f"{_KEY} in the model's configuration"


def _selection(chosen: str, installed: tuple[str, ...], reason: str, why_not: str) -> Selection:
    rejected = tuple(Rejected(name, f"not asked: {why_not}") for name in installed if name != chosen)
    return Selection(_WHAT, chosen, reason, rejected)


def _check_installed(name: str, setting: str, plugins: PluginManager) -> None:
    if plugins.found(IO_PROCESSORS, name) is not None:
        return  # whether it may be loaded, the manager says
    installed = ", ".join(sorted(v.plugin.name for v in plugins.verdicts if v.plugin.group == IO_PROCESSORS)) or "none"
    raise PluginError(
        f"IO processor {name[:80]!r}, asked for by {setting}, isn't installed; installed: {installed}. Install it, or "
        f"start with {_FLAG} {_NONE}"
    )
