"""Writes a distribution from the templates of its kind."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from corefw.cli.plugins.kinds import KINDS, Kind
from corefw.errors import ConfigError

__all__ = ["Project", "render", "write_project"]

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_ARCHITECTURE = re.compile(r"[A-Z][A-Za-z0-9]*")
_MODEL = "model"
_TEMPLATES = files("corefw.cli.plugins") / "templates"
_CAMEL_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Project:
    """The names of a distribution that is to be written.

    Args:
        kind: a key of ``KINDS``.
        name: of the plugin.

    Raises:
        ConfigError: the kind is unknown, or the name can't be used.
    """

    def __init__(self, kind: str, name: str) -> None:
        if kind not in KINDS:
            raise ConfigError(f"there is no kind {kind[:60]!r} of plugins; the kinds are {', '.join(KINDS)}")
        if kind == _MODEL and not _ARCHITECTURE.fullmatch(name):
            raise ConfigError(f"a model is named by its architecture, such as MyModelForCausalLM, not {name[:60]!r}")
        if kind != _MODEL and not _NAME.fullmatch(name):
            raise ConfigError(f"{name[:60]!r} can't be a plugin's name; write small letters and digits, like my-thing")
        words = re.split(r"[_-]", _CAMEL_BORDER.sub("-", name).lower())
        self.kind = kind
        self.name = name
        self.distribution = "-".join(("corefw", *words))
        self.package = "_".join(("corefw", *words))
        self.class_name = name if kind == _MODEL else "".join(word.capitalize() for word in words)
        if keyword.iskeyword(self.class_name):
            raise ConfigError(f"{name!r} would make a class called {self.class_name}, a word of Python")

    @property
    def values(self) -> dict[str, str]:
        """The templates' placeholders."""
        kind = KINDS[self.kind]
        names = {
            "name": self.name,
            "distribution": self.distribution,
            "package": self.package,
            "class_name": self.class_name,
        }
        return names | {
            "description": kind.description,
            "interface": kind.interface,
            "suite": kind.suite,
            "serve": Template(kind.serve).substitute(names),
            "entry_points": _entry_points(kind, names),
            "api_versions": "".join(f'{group} = "v1"\n' for group in kind.entries).rstrip(),
        }


def render(project: Project) -> Iterator[tuple[str, str]]:
    """Each file's path in the project, and its text."""
    kind, values = KINDS[project.kind], project.values
    folder = project.kind.replace("-", "_")
    yield "pyproject.toml", _filled("project/pyproject.toml", values)
    yield "README.md", _filled("project/README.md", values)
    yield ".github/workflows/ci.yml", _filled("project/ci.yml", values)
    yield f"{project.package}/__init__.py", f'"""{kind.description}."""\n'
    yield f"{project.package}/py.typed", ""
    for module in kind.modules:
        yield f"{project.package}/{module}.py", _filled(f"{folder}/{module}.py", values)
    yield f"tests/test_{project.package.removeprefix('corefw_')}.py", _filled(f"{folder}/test.py", values)


def write_project(project: Project, directory: Path) -> list[Path]:
    """Write every file below ``directory``, which is made; returns them.

    Raises:
        ConfigError: there is something in it already.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is there already and isn't empty; name another place with --directory")
    written = []
    for name, text in render(project):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _entry_points(kind: Kind, names: Mapping[str, str]) -> str:
    tables = []
    for group, (name, value) in kind.entries.items():
        entry = Template(f'$name = "$package.{value}"' if name == "$name" else "").substitute(names)
        tables.append(f'[project.entry-points."corefw.{group}"]\n{entry}\n')
    return "\n".join(tables)


def _filled(template: str, values: Mapping[str, str]) -> str:
    return Template((_TEMPLATES / f"{template}.tmpl").read_text(encoding="utf-8")).substitute(values)
