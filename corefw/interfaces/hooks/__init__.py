"""Hooks that a general plugin may implement: one module a family, each with the hooks and the types they return.

A hook is called when a process starts and returns a plain object (an observer, an editor, a table); what runs later
calls that object and never asks for hooks again. So an engine without plugins does nothing for them, in no step.

A hook module marks its functions::

    from corefw.sdk.plugins import hookimpl

    @hookimpl
    def corefw_loaded(process): ...

A hook may leave out parameters that it doesn't need. Returning None contributes nothing.
"""

from __future__ import annotations

from corefw.interfaces.hooks import (
    configuration,
    front_end,
    http,
    kv,
    lifecycle,
    loading,
    media,
    model,
    process,
    rpc,
    scheduling,
    stats,
)

__all__ = ["FAMILIES"]

FAMILIES = (process, front_end, http, stats, configuration, loading, scheduling, kv, lifecycle, model, media, rpc)
