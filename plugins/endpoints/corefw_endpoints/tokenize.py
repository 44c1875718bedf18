"""``/tokenize``: the token ids that the completions and chat routes would make of a prompt or of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import RequestError
from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.rendering import Renderer, Tokenizer
from corefw.sdk.server import (
    MESSAGES_SCHEMA,
    TEMPLATE_KWARGS_SCHEMA,
    Operation,
    RequestShape,
    check_template_ends,
    check_template_kwargs,
    documented,
    fragment,
    json_response,
    off_loop,
    or_null,
    parse_messages,
    read_object,
    render_chat,
    state_of,
)

__all__ = ["TokenizeEndpoint"]

_CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt or a conversation, one of them."""

    model: Annotated[str | None, documented("A name that /v1/models lists.")] = None
    prompt: Annotated[str | None, documented("A text; control tokens may be written in it.")] = None
    messages: Annotated[Any, documented("A conversation.", anyOf=or_null(MESSAGES_SCHEMA))] = None
    add_special_tokens: Annotated[
        bool | None,
        documented("With a prompt: begin with the begin token where the model wants one; true by default."),
    ] = None
    return_token_strs: Annotated[bool | None, documented("Answer with each token's text, too.")] = None
    add_generation_prompt: Annotated[
        bool | None, documented("With messages: end where the assistant begins; true by default.")
    ] = None
    continue_final_message: Annotated[
        bool | None, documented("With messages: end with the last one's text, so that it can be continued.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        documented("With messages: variables for the model's chat template.", **TEMPLATE_KWARGS_SCHEMA),
    ] = None

    def check(self) -> None:
        """Refuse combinations that mean nothing.

        Raises:
            RequestError: with the field.
        """
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("send either prompt or messages", param="prompt")
        if self.prompt is not None:
            wrong = next((name for name in _CHAT_FIELDS if getattr(self, name) is not None), None)
            if wrong is not None:
                raise RequestError(f"{wrong} goes with messages only; leave it out", param=wrong)
            return
        check_template_kwargs(self.chat_template_kwargs)
        if self.add_special_tokens:
            raise RequestError(
                "the chat template says which special tokens messages get; leave add_special_tokens out",
                param="add_special_tokens",
            )
        check_template_ends(self.add_generation_prompt, self.continue_final_message)


TOKENIZE_REQUEST = RequestShape(
    struct=TokenizeRequest,
    neutral={"chat_template": (), "documents": ([],), "mm_processor_kwargs": ({},), "tools": ([],)},
    ignored=frozenset(),
    needed=("prompt", "messages"),
)


class Tokenized(msgspec.Struct, kw_only=True):
    """Token ids. ``max_model_len`` is what prompt and output together may have."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Annotated[
        list[str] | None, documented("The text of each token; an incomplete character is U+FFFD.")
    ] = None


class TokenizeEndpoint(Endpoint):
    """``POST /tokenize``."""

    name = "tokenize"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/tokenize", _tokenize, methods=["POST"])]

    def openapi(self) -> Mapping[str, Any]:
        """Of the one route."""
        return fragment(
            Operation(
                method="POST",
                path="/tokenize",
                summary="Make token ids of a prompt or of messages",
                request=TOKENIZE_REQUEST,
                answer=Tokenized,
                errors={404: "No model of that name is served."},
                examples={
                    "A prompt": {"prompt": "Hello, world!"},
                    "Messages": {"messages": [{"role": "user", "content": "Hi."}], "return_token_strs": True},
                },
            )
        )


async def _tokenize(request: Request) -> Response:
    state = state_of(request)
    fields = TOKENIZE_REQUEST.decode(await read_object(request))
    state.served_name(fields.model)
    fields.check()
    ids = await _token_ids(state.renderer, fields)
    texts = await off_loop(len(ids), _texts, state.renderer.tokenizer, ids) if fields.return_token_strs else None
    return json_response(
        Tokenized(count=len(ids), max_model_len=state.engine.plan.max_model_len, tokens=ids, token_strs=texts)
    )


async def _token_ids(renderer: Renderer, fields: TokenizeRequest) -> list[int]:
    if fields.prompt is not None:
        add_special_tokens = fields.add_special_tokens is not False
        return await off_loop(
            len(fields.prompt), renderer.encode, fields.prompt, param="prompt", add_special_tokens=add_special_tokens
        )
    continued = bool(fields.continue_final_message)
    return await render_chat(
        renderer,
        parse_messages(fields.messages),
        template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt is not False and not continued,
        continue_final_message=continued,
    )


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in ids]
