"""What the protocol answers in the application's stead, for those who count and log answers inside it."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["note_refusal", "status_without_answer"]

# As nginx writes it: the client went before there was an answer.
_CLIENT_GONE = 499
_STATE_KEY = "refusal"


def note_refusal(scope: Scope, status: int) -> None:
    """The protocol answers this request, because the rest of it doesn't come."""
    scope["state"][_STATE_KEY] = status


def status_without_answer(scope: Scope) -> int:
    """How a request ended that the application didn't answer."""
    status: int = scope["state"].get(_STATE_KEY, _CLIENT_GONE)
    return status
