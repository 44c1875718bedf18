"""The client of an engine behind a hub."""

from __future__ import annotations

import time

from corefw.engine.clients.multiprocess import MultiProcessClient

__all__ = ["HubClient"]

# The hub says twice a second that it is there.
_QUIET_S = 3.0


class HubClient(MultiProcessClient):
    """Takes the hub for a core, and knows that it isn't there for long silences. Made by ``HubProcess.connect``."""

    @property
    def trouble(self) -> str | None:
        """Of the engine, as the hub told it, or of the hub."""
        silent_s = time.monotonic() - self._link.heard_s
        if silent_s >= _QUIET_S:
            return f"the process between this server and the engine has shown no sign of life for {silent_s:.0f} s"
        return super().trouble
