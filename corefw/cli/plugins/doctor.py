"""``corefw plugins doctor``: what is wrong with the plugins, where, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw import env
from corefw.config.args import UserArgs, add_flags
from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.plugin_system.doctor import Examination
    from corefw.plugin_system.findings import Finding

__all__ = ["add_arguments", "run"]

_TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins doctor``."""
    parser.add_argument(
        "project",
        metavar="FOLDER",
        nargs="?",
        help="a distribution under development, to compare with what is installed (default: here, if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--url", help="address of a running server, whose processes are compared as well")
    parser.add_argument("--api-key", help="key for the server; default: COREFW_API_KEY")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help="for loading a plugin (default: 60)"
    )
    add_flags(parser, ("plugins",))


def run(namespace: argparse.Namespace) -> int:
    """Print the findings; 1 when there is something to mend."""
    from corefw.config.redaction import Redactor
    from corefw.plugin_system.doctor import examine

    if not namespace.timeout > 0:
        raise ConfigError(f"--timeout must be more than 0 seconds, got {namespace.timeout:g}")
    section = UserArgs.from_namespace(namespace).section("plugins")
    examination = examine(section.get("plugins"), namespace.timeout, _project(namespace.project))
    redactor = Redactor(UserArgs({}), [*env.secrets(), *([namespace.api_key] if namespace.api_key else [])])
    findings = [
        dataclasses.replace(finding, what=redactor.text(finding.what))
        for finding in (*examination.findings, *(_server_findings(namespace) if namespace.url else ()))
    ]
    if namespace.json:
        print(json.dumps(_as_json(examination, findings), indent=2))
    else:
        _print(examination, findings)
    return 1 if findings else 0


def _project(named: str | None) -> Path | None:
    if named is not None:
        return Path(named)
    here = Path.cwd()
    return here if (here / "pyproject.toml").is_file() else None


def _server_findings(namespace: argparse.Namespace) -> Iterator[Finding]:
    import asyncio  # not needed by a listing, which makes this action's flags, too

    import msgspec

    from corefw.cli.client.connect import base_url
    from corefw.plugin_system.discovery import find_plugins
    from corefw.plugin_system.process_check import check_processes
    from corefw.plugin_system.process_report import PluginSummary

    url = base_url(namespace.url)
    report = asyncio.run(_report(url, namespace.api_key or env.api_key()))
    try:
        plugins = msgspec.convert(report["plugins"], list[PluginSummary])
        missing = msgspec.convert(report["missing_processes"], dict[str, str])
    except (KeyError, msgspec.ValidationError) as error:
        raise ConfigError(f"{url}/plugins isn't a report of this version of corefw: {error}") from error
    yield from check_processes(plugins, missing, find_plugins(), url)


async def _report(url: str, api_key: str | None) -> dict[str, Any]:
    from corefw.cli.client.http import HttpTransport
    from corefw.cli.client.transport import get_json

    transport = HttpTransport(url, api_key=api_key, reuse=False)
    try:
        report: dict[str, Any] = await get_json(transport, "/plugins")
        return report
    finally:
        await transport.close()


def _as_json(examination: Examination, findings: list[Finding]) -> dict[str, Any]:
    return {
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "num_plugins": examination.num_plugins,
        "num_loaded": examination.num_loaded,
        "left_out": examination.left_out,
    }


def _print(examination: Examination, findings: list[Finding]) -> None:
    for finding in findings:
        print(f"{finding.kind}: {finding.what}\n  where:  {finding.where}\n  remedy: {finding.remedy}")
    for name, reason in examination.left_out.items():
        print(f"not loaded: {name}: {reason}")
    result = f"{len(findings)} to mend" if findings else "nothing to mend"
    print(f"{examination.num_plugins} plugins found, {examination.num_loaded} loaded in a child process: {result}")
