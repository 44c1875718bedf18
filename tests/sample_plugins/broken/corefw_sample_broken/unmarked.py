"""Its hook lacks the mark."""


def corefw_loaded(process: str) -> None:
    """Never called."""
