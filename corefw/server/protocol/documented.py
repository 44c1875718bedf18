"""What schemas say of a field beyond its type: it stands next to the field, and changes nothing about decoding."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["documented", "or_null"]


def documented(description: str, **keywords: Any) -> msgspec.Meta:
    """Annotate a field of a request or an answer: ``Annotated[int | None, documented("...", minimum=1)] = None``.

    The checks, with messages fit for clients, are the route's own; a range stated here is the one they have. A field
    that is decoded by hand is ``Any`` for msgspec, and its keywords are its whole schema.

    Args:
        description: for readers of the API, a sentence.
        keywords: of JSON Schema 2020-12.
    """
    return msgspec.Meta(description=description, extra_json_schema=keywords or None)


def or_null(*schemas: dict[str, Any]) -> list[dict[str, Any]]:
    """For ``anyOf``: one of these, or ``null``, which says what silence says."""
    return [*schemas, {"type": "null"}]
