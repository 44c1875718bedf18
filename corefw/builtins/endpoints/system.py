"""Health, version, and the report of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import corefw
from corefw.interfaces.endpoint import Endpoint
from corefw.server.errors import error_response
from corefw.server.json_request import json_response
from corefw.server.request_id import request_id_of
from corefw.server.state import state_of

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["SystemEndpoint"]


class SystemEndpoint(Endpoint):
    """What an operator asks a server."""

    name = "system"
    public_paths = frozenset({"/health", "/ping"})

    def routes(self) -> Sequence[BaseRoute]:
        """Two open routes and two behind the key."""
        return [
            Route("/health", _health, methods=["GET"]),
            Route("/ping", _health, methods=["GET", "POST"]),
            Route("/version", _version, methods=["GET"]),
            Route("/plugins", _plugins, methods=["GET"]),
        ]


class Health(msgspec.Struct, kw_only=True):
    """The engine lives."""

    status: str = "ok"


class Version(msgspec.Struct, kw_only=True):
    """Which corefw this is."""

    version: str


class PluginReport(msgspec.Struct, kw_only=True):
    """One plugin that was found, with its state and the reason for it."""

    group: str
    name: str
    distribution: str
    version: str
    state: str
    reason: str


class SelectionReport(msgspec.Struct, kw_only=True):
    """One choice, and why the others weren't chosen (name to reason)."""

    what: str
    chosen: str
    reason: str
    rejected: dict[str, str]


class PluginsReport(msgspec.Struct, kw_only=True):
    """All plugins and all choices among them."""

    plugins: list[PluginReport]
    selections: list[SelectionReport]


async def _health(request: Request) -> Response:
    death = state_of(request).engine.death
    if death is not None:
        return error_response(death, request_id_of(request.scope))
    return json_response(Health())


async def _version(_: Request) -> Response:
    return json_response(Version(version=corefw.__version__))


async def _plugins(request: Request) -> Response:
    manager = state_of(request).plugins
    report = PluginsReport(plugins=[], selections=[]) if manager is None else _report(manager)
    return json_response(report)


def _report(manager: PluginManager) -> PluginsReport:
    plugins = []
    for verdict in manager.verdicts:
        plugin = verdict.plugin
        outcome = manager.outcome(plugin)
        plugins.append(
            PluginReport(
                group=plugin.group,
                name=plugin.name,
                distribution=plugin.distribution,
                version=plugin.version,
                state=(verdict if outcome is None else outcome).state.value,
                reason=(verdict if outcome is None else outcome).reason,
            )
        )
    selections = [
        SelectionReport(what=s.what, chosen=s.chosen, reason=s.reason, rejected={r.name: r.reason for r in s.rejected})
        for s in manager.selections
    ]
    return PluginsReport(plugins=plugins, selections=selections)
