"""Why a model can't be computed here, as one sentence."""

from __future__ import annotations

__all__ = ["Refused", "shown_error"]


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """The sentence, without a full stop; it goes into the record of the choice."""


def shown_error(error: Exception) -> str:
    """Kind and text of an error on one line, bounded."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
