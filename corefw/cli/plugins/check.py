"""``corefw plugins check``: run the conformance suites on installed plugins, or on those of a project folder."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from corefw.errors import ConfigError

__all__ = ["add_arguments", "run"]

_TIMEOUT_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins check``."""
    parser.add_argument(
        "target",
        metavar="NAME_OR_PATH",
        help="name, distribution/name or distribution/* of what is installed; or the folder of a distribution, "
        "installed or not, whose own tests say what the suites need to know",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help="for all of it (default: 600)"
    )


def run(namespace: argparse.Namespace) -> int:
    """Print what holds and what doesn't; 1 when something fails."""
    from corefw.cli.plugins.check_run import check_installed, check_project

    if not namespace.timeout > 0:
        raise ConfigError(f"--timeout must be more than 0 seconds, got {namespace.timeout:g}")
    folder = Path(namespace.target)
    is_project = folder.is_dir() and (folder / "pyproject.toml").is_file()
    report = (
        check_project(folder.resolve(), namespace.timeout)
        if is_project
        else check_installed(namespace.target, namespace.timeout)
    )
    if namespace.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    failed = any(case["result"] == "fails" for plugin in report["plugins"] for case in plugin["cases"])
    return 1 if failed or report["problems"] else 0


def _print(report: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    for plugin in report["plugins"]:
        print(f"{plugin['group']}: {plugin['distribution']}/{plugin['name']}")
        for case in plugin["cases"]:
            counts[case["result"]] += 1
            print(f"  {case['result']:<11}  {case['what']}")
            if case["reason"]:
                print(f"  {'':<11}  {case['reason']}" + (f" ({case['where']})" if case["where"] else ""))
    for problem in report["problems"]:
        print(f"problem: {problem}")
    listed = ", ".join(f"{counts[result]} {result}" for result in ("holds", "fails", "not checked"))
    print(f"{len(report['plugins'])} plugins: {listed}")
