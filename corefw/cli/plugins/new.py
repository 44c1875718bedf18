"""``corefw plugins new``: write a distribution with a plugin that works, to begin from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from corefw.cli.plugins.kinds import KINDS

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw plugins new``."""
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "name",
        metavar="NAME",
        help="the plugin's, like my-thing; of a model the architecture, like MyForCausalLM",
    )
    parser.add_argument("--directory", metavar="FOLDER", help="where to; default: ./corefw-NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(namespace: argparse.Namespace) -> int:
    """Write it and say how to go on."""
    from corefw.cli.plugins.scaffold import Project, write_project

    project = Project(namespace.kind, namespace.name)
    directory = Path(namespace.directory or project.distribution)
    written = write_project(project, directory)
    if namespace.json:
        names = [str(path) for path in written]
        print(json.dumps({"distribution": project.distribution, "directory": str(directory), "files": names}, indent=2))
        return 0
    print(f"{directory}: {len(written)} files of {project.distribution}, {namespace.kind} {project.name!r}")
    print(f'  python -m pip install -e "{directory}[test]"')
    print(f"  corefw plugins check {directory}")
    print(f"  corefw serve {project.values['serve']}")
    return 0
