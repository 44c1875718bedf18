"""Health, version, and the report of plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import corefw
from corefw.interfaces.endpoint import Endpoint
from corefw.plugin_system.report import Row, report
from corefw.server.errors import error_response
from corefw.server.json_request import json_response
from corefw.server.openapi import Operation, fragment
from corefw.server.request_id import request_id_of
from corefw.server.state import state_of

if TYPE_CHECKING:
    from corefw.interfaces.selection import Selection

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

    def openapi(self) -> Mapping[str, Any]:
        """What they answer."""
        ping = "The same, for hosts that ask here"
        return fragment(
            Operation(method="GET", path="/health", summary="Whether the engine lives", answer=Health),
            Operation(method="GET", path="/ping", summary=ping, answer=Health),
            Operation(method="POST", path="/ping", summary=ping, answer=Health),
            Operation(method="GET", path="/version", summary="Which corefw this is", answer=Version),
            Operation(
                method="GET",
                path="/plugins",
                summary="Plugins and decisions",
                description="All plugins that were found, the choices among them, and what else was decided.",
                answer=PluginsReport,
            ),
        )


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


class Decision(msgspec.Struct, kw_only=True):
    """What was decided at the start, by the configuration or by the core and its workers."""

    what: str
    chosen: str
    why: str


class PluginsReport(msgspec.Struct, kw_only=True):
    """All plugins, all choices among them in this process, and what else was decided, here or in the core."""

    plugins: list[PluginReport]
    selections: list[SelectionReport]
    decisions: list[Decision]


async def _health(request: Request) -> Response:
    death = state_of(request).engine.death
    if death is not None:
        return error_response(death, request_id_of(request.scope))
    return json_response(Health())


async def _version(_: Request) -> Response:
    return json_response(Version(version=corefw.__version__))


async def _plugins(request: Request) -> Response:
    state = state_of(request)
    decisions = (*state.config.decisions, *state.engine.plan.decisions)
    manager = state.plugins
    return json_response(
        PluginsReport(
            plugins=[] if manager is None else [_plugin(row) for row in report(manager)],
            selections=[] if manager is None else [_selection(selection) for selection in manager.selections],
            decisions=[Decision(what=what, chosen=chosen, why=why) for what, chosen, why in decisions],
        )
    )


def _plugin(row: Row) -> PluginReport:
    return PluginReport(
        group=row.group,
        name=row.name,
        distribution=row.distribution,
        version=row.version,
        state=row.state.value,
        reason=row.reason,
    )


def _selection(selection: Selection) -> SelectionReport:
    return SelectionReport(
        what=selection.what,
        chosen=selection.chosen,
        reason=selection.reason,
        rejected={rejected.name: rejected.reason for rejected in selection.rejected},
    )
