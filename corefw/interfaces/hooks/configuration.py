"""Hooks of the configuration: a plugin's own section, names for models, defaults, and what results depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from corefw.errors import PluginError
from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.model_info import ModelInfo
    from corefw.interfaces.platform import Proposal

__all__ = [
    "ModelReference",
    "PluginSettings",
    "corefw_config_section",
    "corefw_configured",
    "corefw_fingerprint",
    "corefw_propose",
    "corefw_resolve_model",
]

_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class ModelReference:
    """What a model reference stands for.

    Attributes:
        reference: as the operator could have written it: a path, ``pypi:PACKAGE``, a hub name.
        reason: one sentence, printed at start.
    """

    reference: str
    reason: str


class PluginSettings:
    """The sections of all plugins of this process, filled and checked."""

    def __init__(self, sections: Mapping[type[Any], Any]) -> None:
        self._sections = dict(sections)

    def of(self, kind: type[_S]) -> _S:
        """The section of that type, the one that ``corefw_config_section`` returned.

        Raises:
            PluginError: no plugin has such a section.
        """
        if kind not in self._sections:
            raise PluginError(f"{kind.__name__} is no section; return it from the hook corefw_config_section")
        section: _S = self._sections[kind]
        return section


@hookspec
def corefw_config_section() -> type[Any] | None:
    """Declare the plugin's own section of the configuration.

    Called in every process, before the plugin is asked anything else, and for the help of commands that run a model. An
    operator fills the section with ``--NAME.FIELD VALUE``, in the file of ``--config`` under ``plugins: {NAME: {FIELD:
    VALUE}}``, or with ``LLM(plugin_config={NAME: {FIELD: VALUE}})``; NAME is the plugin's. Values are checked by the
    fields' types.

    Returns:
        a dataclass or a ``msgspec.Struct`` of plain data, where every field has a default: it travels to every process.
        None for no section.
    """


@hookspec
def corefw_configured(settings: PluginSettings) -> None:
    """Take the plugin's settings.

    Called in every process after ``corefw_config_section`` and before any other hook but ``corefw_loaded``; again, with
    the new values, where a process builds a further engine.

    Args:
        settings: ask it for the section: ``settings.of(MySection)``.
    """


@hookspec
def corefw_resolve_model(reference: str) -> ModelReference | None:
    """Say what a model reference stands for, before the configuration exists.

    Called once, in the front end. The first plugin that has an answer wins. Clients go on to see the model under the
    name that the operator gave.

    Args:
        reference: what the operator wrote.

    Returns:
        another reference, for the model sources to find; None when it isn't this plugin's.
    """


@hookspec
def corefw_propose(model: ModelInfo, platform: str, explicit: frozenset[str]) -> Sequence[Proposal] | None:
    """Ask for other defaults, each with its reason.

    Called once, in the front end, after the platform's own proposals, which these replace; of two plugins the later
    wins. What the operator set beats both, and the log tells of it. Sections ``load`` and ``plugins`` are settled
    by then, and those of the server aren't the engine's: a proposal for them is an error.

    Args:
        model: what the files' headers say.
        platform: name of the chosen platform.
        explicit: the options that the operator set, as ``section.field``.

    Returns:
        a list or tuple of proposals.
    """


@hookspec
def corefw_fingerprint(config: EngineConfig) -> str | None:
    """Add to the fingerprint under which KV blocks and compiled code are kept.

    Called once, in the front end, when the configuration is otherwise complete. The fingerprint already has the
    plugin's version and its section; this is for what they don't tell, such as the content of a file.

    Args:
        config: the engine's.

    Returns:
        any text; another one means that nothing that was kept can be used.
    """
