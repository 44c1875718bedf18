"""Public names of ``corefw.interfaces`` with signatures. ``python -m tests.policy.surface`` renews the snapshot."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator

from tests.policy.sources import CORE, ROOT, core_modules, module_name

__all__ = ["RENEW", "SNAPSHOT", "described"]

SNAPSHOT = ROOT / "tests" / "policy" / "snapshots" / "interfaces.txt"
RENEW = "python -m tests.policy.surface"


def described() -> list[str]:
    """A line a name: functions with signature, classes with bases, and each of their own attributes."""
    modules = (module_name(path) for path in core_modules() if CORE / "interfaces" in path.parents)
    return sorted({line for name in modules for line in _module(name)})


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        # What a module passes on is described where it is defined.
        if getattr(value, "__module__", name) == name:
            yield from _name(f"{name}.{public}", value)


def _name(path: str, value: object) -> Iterator[str]:
    if isinstance(value, type):
        bases = ", ".join(base.__qualname__ for base in value.__bases__ if base is not object)
        yield f"{path}({bases})"
        yield from _members(path, value)
    elif inspect.isfunction(value):
        yield f"{path}{inspect.signature(value)}"
    else:
        yield f"{path}: {type(value).__name__}"


def _members(path: str, cls: type) -> Iterator[str]:
    fields = {item.name for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name, annotation in inspect.get_annotations(cls).items():
        if not name.startswith("_"):
            yield f"{path}.{name}: {annotation}" + (" (field)" if name in fields else "")
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        function = getattr(member, "__func__", member.fget if isinstance(member, property) else member)
        # What dataclasses and structs write themselves follows from the fields.
        if (
            inspect.isfunction(function)
            and function.__module__ == cls.__module__
            and not (name == "__init__" and fields)
        ):
            abstract = "abstract " if getattr(function, "__isabstractmethod__", False) else ""
            yield f"{path}.{name}: {abstract}{type(member).__name__} {inspect.signature(function)}"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(described()) + "\n", encoding="utf-8")
