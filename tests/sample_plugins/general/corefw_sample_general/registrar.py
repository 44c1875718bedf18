"""A plain function that registers by side effect."""

from __future__ import annotations

REGISTERED: list[str] = []


def register() -> None:
    """Register once, however often it is called."""
    if "sample" not in REGISTERED:
        REGISTERED.append("sample")
    CALLS.append("register")


CALLS: list[str] = []
