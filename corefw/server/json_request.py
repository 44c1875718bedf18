"""Reading a request's JSON body and writing a JSON answer."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corefw.errors import RequestError
from corefw.server.protocol.json_body import parse_object

__all__ = ["json_response", "read_object"]


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        RequestError: it isn't declared as JSON, is compressed, or is no JSON object.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json":
        raise RequestError("the body must be JSON; send it with 'Content-Type: application/json'")
    charset = parameters.strip().lower().replace('"', "")
    if charset.startswith("charset=") and charset not in ("charset=utf-8", "charset=utf8"):
        raise RequestError("the body must be UTF-8; leave the charset out of the Content-Type")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestError("the body must not be compressed")
    return parse_object(await request.body())


def json_response(value: msgspec.Struct) -> Response:
    """A struct as a response."""
    return Response(msgspec.json.encode(value), media_type="application/json")
