"""Hooks of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.interfaces.stat_logger import StatLogger

__all__ = ["corefw_stat_logger"]


@hookspec
def corefw_stat_logger(config: EngineConfig) -> StatLogger | None:
    """Receive the engine's figures and those of each request, with its tags.

    For plugins that need the configuration; others register the class in the group ``corefw.stat_logger_plugins``.
    Called once, when the server is put together (process ``front_end``).

    Args:
        config: as resolved.

    Returns:
        the logger.
    """
