"""Things that are no platforms."""

from corefw.interfaces.platform import Platform


class NotAPlatform:
    """Derives from nothing."""


class FromTheFuture(Platform):
    """Written for a later version of the interface."""

    api_version = 99


def a_number() -> int:
    """Return no class."""
    return 7


def raises() -> type:
    """Fail when it is called."""
    raise RuntimeError("sample call failure")
