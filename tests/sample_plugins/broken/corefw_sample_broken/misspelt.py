"""Its hook has a wrong name."""

from corefw.plugin_system.hooks import hookimpl


@hookimpl
def corefw_loadde(process: str) -> None:
    """Never called."""
