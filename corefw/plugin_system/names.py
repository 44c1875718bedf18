"""Names: how distributions compare, and what to suggest for a name that matches nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["normalized_distribution", "suggestion"]

_SEPARATORS = re.compile(r"[-_.]+")


def normalized_distribution(name: str) -> str:
    """The form under which package indexes compare names: ``Corefw_Demo`` is ``corefw-demo``."""
    return _SEPARATORS.sub("-", name).lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known ones, else all of them."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name[:80], names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"known are {', '.join(names[:20])}{more}" if names else "there are none"
