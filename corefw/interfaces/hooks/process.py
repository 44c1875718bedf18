"""Hooks of a process's life."""

from __future__ import annotations

from corefw.interfaces.hooks.marker import hookspec

__all__ = ["corefw_loaded"]


@hookspec
def corefw_loaded(process: str) -> None:
    """Called once in each process, after all general plugins were loaded in it (again for a further engine).

    Args:
        process: the process's role: ``front_end``, ``engine_core``, ``worker`` or ``cli``. An engine that runs inside
            the front end is one process and has the role of whoever loaded plugins first.
    """
