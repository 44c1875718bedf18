"""Plugins that count as installed for the length of a block or a test."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType

from corefw.plugin_system.discovery import find_plugins
from corefw.plugin_system.groups import PREFIX, group_named
from corefw.plugin_system.loading import attribute_of

__all__ = ["installed_as", "reference_to", "registered", "write_metadata"]

_numbers = itertools.count(1)


def write_metadata(
    site: Path, distribution: str, version: str, groups: Mapping[str, Mapping[str, str]], requires: Iterable[str] = ()
) -> None:
    """Write a distribution's metadata folder, as an installer does.

    Args:
        site: a folder on the path.
        groups: entry points, by full name of the group, then by name.
    """
    folder = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    header = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (folder / "METADATA").write_text(header + "".join(f"Requires-Dist: {each}\n" for each in requires), "utf-8")
    parts = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items())
    (folder / "entry_points.txt").write_text("\n".join(parts), "utf-8")


@contextmanager
def registered(group: str, name: str, value: object, *, distribution: str | None = None) -> Iterator[Path]:
    """A plugin that this process finds as if it were installed; children that get the folder on their path do, too.

    What a group denies by default, or loads on name alone, has to be asked for as ever.

    Args:
        group: with or without the prefix ``corefw.``.
        name: of the entry point.
        value: a class, function or module, or the text of an entry point. What has no place in an importable module
            can be found in this process alone.
        distribution: its name; one of its own when None.

    Yields:
        the folder with the metadata.

    Raises:
        PluginError: there is no such group.
    """
    known = group_named(group)
    owner = distribution or f"registered-{next(_numbers)}"
    with tempfile.TemporaryDirectory(prefix="corefw-registered-") as folder:
        site = Path(folder)
        write_metadata(site, owner, "1.0", {PREFIX + known.name: {name: reference_to(value)}})
        sys.path.insert(0, folder)
        try:
            yield site
        finally:
            sys.path.remove(folder)


@contextmanager
def installed_as(group: str, name: str, value: object) -> Iterator[None]:
    """The same, but nothing is done where that very plugin is installed."""
    for plugin in find_plugins():
        if (plugin.group, plugin.name) == (group, name) and attribute_of(plugin.value) is value:
            yield
            return
    with registered(group, name, value):
        yield


def reference_to(value: object) -> str:
    """The text of an entry point that leads to ``value``."""
    if isinstance(value, str):
        return value
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type | FunctionType):
        text = f"{value.__module__}:{value.__qualname__}"
        if "<locals>" not in text and value.__module__ in sys.modules and attribute_of(text) is value:
            return text
    module = ModuleType(f"corefw_registered_{next(_numbers)}")
    vars(module)["value"] = value
    sys.modules[module.__name__] = module
    return f"{module.__name__}:value"
