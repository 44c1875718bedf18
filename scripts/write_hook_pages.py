"""Writes docs/plugins/hooks.md from the specifications in corefw.interfaces.hooks.

Run it after a hook was added or its docstring changed: ``python scripts/write_hook_pages.py``. A test compares.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from corefw.interfaces.hooks import FAMILIES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "plugins" / "hooks.md"

_HEAD = """\
# Hooks

What a general plugin (group `corefw.general_plugins`) may implement. A hook is called when a process starts and returns
a plain object; nothing is asked while the engine works. Parameters that a hook doesn't need may be left out; None
contributes nothing.

This page is made of the docstrings in `corefw/interfaces/hooks` by `scripts/write_hook_pages.py`.
"""


def page() -> str:
    """The page's text."""
    return "\n".join([_HEAD, *_contents(), "", *(_family(family) for family in FAMILIES)]).rstrip() + "\n"


def hooks_of(family: ModuleType) -> dict[str, Callable[..., Any]]:
    """The hooks that a family's module specifies."""
    return {name: value for name, value in vars(family).items() if hasattr(value, "corefw_spec")}


def samples_with(hook: str) -> list[str]:
    """The sample distributions and packs that implement a hook."""
    defined = re.compile(rf"^@hookimpl.*\ndef {hook}\(", re.MULTILINE)
    found = {
        _project(path)
        for folder in (ROOT / "tests" / "sample_plugins", ROOT / "plugins")
        for path in folder.rglob("*.py")
        if defined.search(path.read_text(encoding="utf-8"))
    }
    return sorted(found)


def _project(path: Path) -> str:
    """The folder of the distribution that a module is in."""
    folder = next(parent for parent in path.parents if (parent / "pyproject.toml").is_file())
    return str(folder.relative_to(ROOT))


def _contents() -> Iterator[str]:
    for family in FAMILIES:
        names = ", ".join(f"[`{name}`](#{name})" for name in hooks_of(family))
        yield f"- {_title(family)}: {names}"


def _title(family: ModuleType) -> str:
    return family.__name__.rpartition(".")[2].replace("_", " ")


def _family(family: ModuleType) -> str:
    intro = _prose(inspect.cleandoc(family.__doc__ or ""))
    parts = [f"## {_title(family)}", intro, *(_hook(family, name, hook) for name, hook in hooks_of(family).items())]
    return "\n\n".join(parts) + "\n"


def _hook(family: ModuleType, name: str, hook: Callable[..., Any]) -> str:
    signature = f"def {name}{_signature(hook)}"
    source = family.__name__.replace(".", "/")
    samples = ", ".join(f"`{sample}`" for sample in samples_with(name)) or "none"
    return "\n\n".join(
        [
            f"### {name}",
            f"```text\n{signature}\n```",
            _prose(inspect.cleandoc(hook.__doc__ or "")),
            f"Specified in `{source}.py`. Used by {samples}.",
        ]
    )


def _signature(hook: Callable[..., Any]) -> str:
    signature = inspect.signature(hook)
    parameters = ", ".join(f"{p.name}: {p.annotation}" for p in signature.parameters.values())
    return f"({parameters}) -> {signature.return_annotation}"


def _prose(text: str) -> str:
    """Docstrings as Markdown: code marks, and the parts under Args and Returns as lists."""
    text = text.replace("``", "`")
    return re.sub(r"^(Args|Returns|Raises):\n((?:    .*\n?|\n)+)", _section, text, flags=re.MULTILINE).strip()


def _section(match: re.Match[str]) -> str:
    body = textwrap.dedent(match.group(2)).rstrip()
    if match.group(1) == "Args":
        body = re.sub(r"^([\w, ]+): ", r"- `\1`: ", body, flags=re.MULTILINE)
        body = re.sub(r"\n {4}", " ", body)
    return f"**{match.group(1)}**\n\n{body}\n\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
