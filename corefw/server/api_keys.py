"""The keys that clients may send. Imports little: they are checked before the engine starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw import env
from corefw.config.checks import check_api_key

if TYPE_CHECKING:
    from corefw.config.engine_config import ServerConfig

__all__ = ["accepted_keys"]


def accepted_keys(config: ServerConfig) -> tuple[str, ...]:
    """The keys of the configuration and of the environment.

    Raises:
        ConfigError: the environment's can't be sent in a header.
    """
    from_environment = env.api_key()
    if from_environment is None:
        return config.api_key
    check_api_key("COREFW_API_KEY", from_environment)
    return (*config.api_key, from_environment)
