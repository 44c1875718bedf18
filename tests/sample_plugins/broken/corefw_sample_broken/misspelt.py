"""Its hook has a wrong name."""

from corefw.sdk.plugins import hookimpl


@hookimpl
def corefw_loadde(process: str) -> None:
    """Never called."""
