"""What an endpoint gets to see of the running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig, ServerConfig

__all__ = ["ServerState"]


class ServerState(Protocol):
    """The narrow face of the server towards endpoints."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def server_config(self) -> ServerConfig: ...
    @property
    def model_names(self) -> tuple[str, ...]: ...
    @property
    def tasks(self) -> frozenset[str]: ...
