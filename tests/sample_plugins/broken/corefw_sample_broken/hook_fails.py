"""Its hook raises."""

from corefw.plugin_system.hooks import hookimpl


@hookimpl
def corefw_loaded() -> None:
    """Fail."""
    raise RuntimeError("sample hook failure")
