"""What ``corefw plugins check`` does: a child process that runs the suites, and what it tells."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from corefw import env
from corefw.errors import ConfigError, PluginError
from corefw.plugin_system.allowlist import nearest, parse_item
from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.groups import GROUPS, GROUPS_BY_NAME, PREFIX
from corefw.plugin_system.names import normalized_distribution, suggestion

__all__ = ["check_installed", "check_project"]

_API_VERSIONS = PREFIX + "api_versions"

Report = dict[str, Any]
"""``plugins``, each with its ``cases``, and ``problems``."""


def check_installed(names: str, timeout_s: float) -> Report:
    """Check what is installed.

    Raises:
        PluginError: there is no plugin of that name.
    """
    item = parse_item(names, "NAME_OR_PATH")
    found = find_plugins()
    if not any(item.names(plugin) for plugin in found):
        raise PluginError(f"no installed plugin is called {item.text[:80]!r}; {nearest(item, found)}")
    return _reported(_child(names, "", [], timeout_s))


def check_project(folder: Path, timeout_s: float) -> Report:
    """Check a project as it is written now, whether or not it is installed.

    Raises:
        ConfigError: its ``pyproject.toml`` can't be read, or names no plugin.
    """
    from corefw.testing.registration import write_metadata

    name, version, groups = _declared(folder / "pyproject.toml")
    with tempfile.TemporaryDirectory(prefix="corefw-check-") as site:
        write_metadata(Path(site), name, version, groups)
        code = folder / "src" if (folder / "src").is_dir() else folder
        names = f"{normalized_distribution(name)}/*"
        report = _reported(_child(names, str(folder / "tests"), [site, str(code)], timeout_s))
    report["problems"] = [*_group_problems(groups), *report["problems"]]
    return report


def _declared(file: Path) -> tuple[str, str, dict[str, dict[str, str]]]:
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from error
    groups = {g: e for g, e in project.get("entry-points", {}).items() if g.startswith(PREFIX.rstrip("."))}
    if not project.get("name") or not set(groups) - {_API_VERSIONS}:
        raise ConfigError(
            f"{file} has no [project.entry-points] of corefw; install the distribution and check it by name"
        )
    return str(project["name"]), str(project.get("version", "0")), groups


def _group_problems(groups: Iterable[str]) -> list[str]:
    return [
        f"nobody reads the entry point group {group!r}; {suggestion(group, (g.entry_point_group for g in GROUPS))}"
        for group in groups
        if group != _API_VERSIONS and group.removeprefix(PREFIX) not in GROUPS_BY_NAME
    ]


def _child(names: str, tests: str, path: list[str], timeout_s: float) -> list[dict[str, Any]]:
    """What the child tells. A crash or a hang costs the child alone; it is told as a problem."""
    with tempfile.TemporaryDirectory(prefix="corefw-checked-") as folder:
        told = Path(folder) / "told.jsonl"
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "corefw.testing.check_process", str(told), names, tests],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env.child_environment(path),
            start_new_session=True,
        )
        end = _ended(child, timeout_s)
        lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    return [*map(json.loads, lines), *([{"problem": end}] if end else [])]


def _ended(child: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Wait for the end of the child and of whatever it started; what was wrong with it."""
    try:
        _, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"the checks took more than {timeout_s:g} s and were ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    last = errors.decode(errors="replace").strip().splitlines()[-1:]
    return f"the checks ended with status {child.returncode}: {' '.join(last)[:500]}" if child.returncode else ""


def _reported(found: Iterable[dict[str, Any]]) -> Report:
    report: Report = {"plugins": [], "problems": []}
    for each in found:
        if "plugin" in each:
            report["plugins"].append({**each["plugin"], "cases": []})
        elif "case" in each:
            report["plugins"][-1]["cases"].append(each["case"])
        else:
            report["problems"].append(each["problem"])
    return report
