"""What an endpoint builds on: the server's state, strict request bodies, errors and answers in the API's shape.

A handler raises the errors of ``corefw.errors``; the server makes the answer of them, with status, code and field.
"""

from __future__ import annotations

from starlette.requests import Request

from corefw.frontend.chat_messages import check_template_ends
from corefw.interfaces.server_state import ServerState
from corefw.server.chat_rendering import render_chat
from corefw.server.errors import error_response
from corefw.server.event_stream import EventStream
from corefw.server.generation import off_loop
from corefw.server.json_request import json_response, read_object
from corefw.server.openapi import Operation, fragment
from corefw.server.protocol.answers import ErrorBody, ErrorDetail, Usage
from corefw.server.protocol.chat import TEMPLATE_KWARGS_SCHEMA, check_template_kwargs
from corefw.server.protocol.chat_messages import MESSAGES_SCHEMA, parse_messages
from corefw.server.protocol.documented import documented, or_null
from corefw.server.protocol.fields import RequestShape, json_kind
from corefw.server.protocol.json_body import shown_name
from corefw.server.protocol.prompts import PROMPT_SCHEMAS, TOKEN_IDS_SCHEMA, parse_prompts, parse_token_ids
from corefw.server.request_id import request_id_of

__all__ = [
    "MESSAGES_SCHEMA",
    "PROMPT_SCHEMAS",
    "TEMPLATE_KWARGS_SCHEMA",
    "TOKEN_IDS_SCHEMA",
    "ErrorBody",
    "ErrorDetail",
    "EventStream",
    "Operation",
    "RequestShape",
    "ServerState",
    "Usage",
    "check_template_ends",
    "check_template_kwargs",
    "documented",
    "error_response",
    "fragment",
    "json_kind",
    "json_response",
    "off_loop",
    "or_null",
    "parse_messages",
    "parse_prompts",
    "parse_token_ids",
    "read_object",
    "render_chat",
    "request_id_of",
    "shown_name",
    "state_of",
]


def state_of(request: Request) -> ServerState:
    """The server behind a request."""
    state: ServerState = request.app.state.corefw
    return state
