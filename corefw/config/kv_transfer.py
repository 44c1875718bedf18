"""Settings of KV that comes from elsewhere or goes there."""

from __future__ import annotations

from dataclasses import dataclass

from corefw.config.checks import check_options
from corefw.config.options import Section, option
from corefw.errors import ConfigError

__all__ = ["KV_ROLES", "LOAD_FAILURE_POLICIES", "KVTransferConfig"]

KV_ROLES = ("producer", "consumer", "both")
LOAD_FAILURE_POLICIES = ("recompute", "fail")


@dataclass(frozen=True, kw_only=True, slots=True)
class KVTransferConfig(Section):
    """KV that comes from elsewhere or goes there."""

    kv_connector: str | None = option(None, "KV connector plugin by name: loads and stores KV blocks; default: none")
    kv_connector_config: str | None = option(
        None, "the connector's own settings, as a JSON object", free_text=True, mapping=True
    )
    kv_role: str = option("both", "what this engine does with KV: hand it over, take it, or both", choices=KV_ROLES)
    kv_load_failure_policy: str = option(
        "recompute",
        "what becomes of a request whose KV can't be loaded: compute what is missing, or fail it",
        choices=LOAD_FAILURE_POLICIES,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.kv_connector is None and self.kv_connector_config is not None:
            raise ConfigError("--kv-connector-config needs --kv-connector, which says whose settings they are")
