"""``/detokenize``: the text of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import RequestError
from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.server import (
    TOKEN_IDS_SCHEMA,
    Operation,
    RequestShape,
    documented,
    fragment,
    json_response,
    off_loop,
    parse_token_ids,
    read_object,
    state_of,
)

__all__ = ["MAX_TOKENS", "DetokenizeEndpoint"]

# More than any text that /tokenize takes has.
MAX_TOKENS = 2**20


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids."""

    model: Annotated[str | None, documented("A name that /v1/models lists.")] = None
    tokens: Annotated[Any, documented("Token ids of the model.", **TOKEN_IDS_SCHEMA, maxItems=MAX_TOKENS)] = None
    skip_special_tokens: Annotated[
        bool | None, documented("Leave control tokens out, as generated text does; false by default.")
    ] = None


DETOKENIZE_REQUEST = RequestShape(struct=DetokenizeRequest, neutral={}, ignored=frozenset(), needed=("tokens",))


class Detokenized(msgspec.Struct, kw_only=True):
    """The text; bytes that are no characters are U+FFFD."""

    prompt: str


class DetokenizeEndpoint(Endpoint):
    """``POST /detokenize``."""

    name = "detokenize"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/detokenize", _detokenize, methods=["POST"])]

    def openapi(self) -> Mapping[str, Any]:
        """Of the one route."""
        return fragment(
            Operation(
                method="POST",
                path="/detokenize",
                summary="Make text of token ids",
                request=DETOKENIZE_REQUEST,
                answer=Detokenized,
                errors={404: "No model of that name is served."},
                examples={"A few tokens": {"tokens": [0, 1, 2]}},
            )
        )


async def _detokenize(request: Request) -> Response:
    state = state_of(request)
    fields = DETOKENIZE_REQUEST.decode(await read_object(request))
    state.served_name(fields.model)
    if isinstance(fields.tokens, list) and len(fields.tokens) > MAX_TOKENS:
        raise RequestError(f"tokens takes at most {MAX_TOKENS} token ids, got {len(fields.tokens)}", param="tokens")
    ids = parse_token_ids(fields.tokens, "tokens", state.num_token_ids)
    text = await off_loop(
        len(ids), state.renderer.tokenizer.decode, ids, skip_special_tokens=bool(fields.skip_special_tokens)
    )
    return json_response(Detokenized(prompt=text))
