"""Health, version, and the report of plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import corefw
from corefw import env
from corefw.config.args import UserArgs
from corefw.config.redaction import Redactor
from corefw.errors import EngineAwayError
from corefw.interfaces.endpoint import Endpoint
from corefw.plugin_system.groups import Process
from corefw.plugin_system.process_report import PluginSummary, Quarantine, ReportedSelection, summaries
from corefw.server.api_keys import accepted_keys
from corefw.server.errors import error_response
from corefw.server.json_request import json_response
from corefw.server.openapi import Operation, fragment
from corefw.server.request_id import request_id_of
from corefw.server.state import ServerState, state_of

__all__ = ["SystemEndpoint"]


class SystemEndpoint(Endpoint):
    """What an operator asks a server."""

    name = "system"
    prefix = ""
    public_paths = frozenset({"/health", "/ping"})

    def routes(self) -> Sequence[BaseRoute]:
        """Two open routes and two behind the key."""
        return [
            Route("/health", _health, methods=["GET"]),
            Route("/ping", _ping, methods=["GET", "POST"]),
            Route("/version", _version, methods=["GET"]),
            Route("/plugins", _plugins, methods=["GET"]),
        ]

    def openapi(self) -> Mapping[str, Any]:
        """What they answer."""
        ping = "Whether the server lives: it does while its engine is being restarted"
        return fragment(
            Operation(method="GET", path="/health", summary="Whether the engine is there", answer=Health),
            Operation(method="GET", path="/ping", summary=ping, answer=Health),
            Operation(method="POST", path="/ping", summary=ping, answer=Health),
            Operation(method="GET", path="/version", summary="Which corefw this is", answer=Version),
            Operation(
                method="GET",
                path="/plugins",
                summary="Plugins and decisions",
                description=(
                    "All plugins that were found, with their states in the front end and in the engine's core, the "
                    "choices among them, contributions of hooks that aren't called any more, and what else was decided."
                ),
                answer=PluginsReport,
            ),
        )


class Health(msgspec.Struct, kw_only=True):
    """All is well."""

    status: str = "ok"


class Version(msgspec.Struct, kw_only=True):
    """Which corefw this is."""

    version: str


class SelectionReport(ReportedSelection, kw_only=True, frozen=True):
    """One choice, and why the others weren't chosen (name to reason), in the process that chose."""

    process: str


class QuarantineReport(Quarantine, kw_only=True, frozen=True):
    """What isn't called any more, whose it is (``distribution/name``), why, and in which process."""

    process: str


class Decision(msgspec.Struct, kw_only=True):
    """What was decided at the start, by the configuration or by the core and its workers."""

    what: str
    chosen: str
    why: str


class PluginsReport(msgspec.Struct, kw_only=True):
    """All plugins with the state that says most and that in each process, all choices, and what else was decided.

    ``missing_processes`` has the processes that gave no report, and why.
    """

    plugins: list[PluginSummary]
    selections: list[SelectionReport]
    quarantined: list[QuarantineReport]
    decisions: list[Decision]
    missing_processes: dict[str, str]


async def _health(request: Request) -> Response:
    """Readiness: whether requests would run now."""
    trouble = state_of(request).engine.trouble
    if trouble is not None and state_of(request).engine.death is None:
        return error_response(EngineAwayError(trouble), request_id_of(request.scope))
    return await _ping(request)


async def _ping(request: Request) -> Response:
    """Liveness: whether there is any sense in waiting."""
    death = state_of(request).engine.death
    if death is not None:
        return error_response(death, request_id_of(request.scope))
    return json_response(Health())


async def _version(_: Request) -> Response:
    return json_response(Version(version=corefw.__version__))


async def _plugins(request: Request) -> Response:
    state = state_of(request)
    await state.plugin_states.refresh()
    reports = state.plugin_states.reports()
    problem = state.plugin_states.core_problem
    decisions = (*state.config.decisions, *state.engine.plan.decisions)
    return json_response(
        _without_secrets(
            state,
            PluginsReport(
                plugins=list(summaries(reports)),
                selections=[_selection(told.process, selection) for told in reports for selection in told.selections],
                quarantined=[_quarantine(told.process, item) for told in reports for item in told.quarantined],
                decisions=[Decision(what=what, chosen=chosen, why=why) for what, chosen, why in decisions],
                missing_processes={} if problem is None else {Process.ENGINE_CORE: problem},
            ),
        )
    )


def _without_secrets(state: ServerState, report: PluginsReport) -> PluginsReport:
    """Reasons are texts of plugins and of errors, which may repeat what they were given."""
    redactor = Redactor(UserArgs({"server.api_key": tuple(accepted_keys(state.server_config))}), env.secrets())

    def shown(value: Any) -> Any:
        if isinstance(value, str):
            return redactor.text(value)
        if isinstance(value, dict):
            return {key: shown(item) for key, item in value.items()}
        return [shown(item) for item in value] if isinstance(value, list) else value

    return msgspec.convert(shown(msgspec.to_builtins(report)), PluginsReport)


def _selection(process: str, selection: ReportedSelection) -> SelectionReport:
    return SelectionReport(process=process, **msgspec.structs.asdict(selection))


def _quarantine(process: str, item: Quarantine) -> QuarantineReport:
    return QuarantineReport(process=process, **msgspec.structs.asdict(item))
