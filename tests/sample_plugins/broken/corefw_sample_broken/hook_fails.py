"""Its hook raises."""

from corefw.sdk.plugins import hookimpl


@hookimpl
def corefw_loaded() -> None:
    """Fail."""
    raise RuntimeError("sample hook failure")
