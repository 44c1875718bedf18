"""``/tokenizer_info``: what a client needs to know to tokenise and to render chats as the server does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.rendering import Renderer, Tokenizer
from corefw.sdk.server import Operation, documented, fragment, json_response, state_of

__all__ = ["TokenizerInfoEndpoint"]


class SpecialToken(msgspec.Struct, kw_only=True):
    """A control token. ``lstrip`` and ``rstrip``: it swallows the blanks before or after it."""

    content: str
    lstrip: bool
    rstrip: bool
    special: bool = True


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """The tokenizer, in the terms of a ``tokenizer_config.json`` where that has them."""

    tokenizer_class: Annotated[str, documented("corefw's kind of tokenizer.")]
    vocab_size: Annotated[int, documented("Token ids that requests may have are below.")]
    model_max_length: Annotated[int, documented("Prompt and output together have at most so many tokens.")]
    add_bos_token: Annotated[bool, documented("A prompt begins with bos_token.")]
    bos_token: str | None
    eos_token: str | None
    added_tokens_decoder: Annotated[dict[str, SpecialToken], documented("The control tokens by id.")]
    chat_template: Annotated[str | None, documented("Jinja source of the chat template; null without one.")]


class TokenizerInfoEndpoint(Endpoint):
    """``GET /tokenizer_info``. The chat template may be the operator's own, so allowing this publishes it."""

    name = "tokenizer_info"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        """One route."""
        return [Route("/tokenizer_info", _tokenizer_info, methods=["GET"])]

    def openapi(self) -> Mapping[str, Any]:
        """Of the one route."""
        return fragment(
            Operation(
                method="GET",
                path="/tokenizer_info",
                summary="Tell about the tokenizer: control tokens, size, chat template",
                answer=TokenizerInfo,
            )
        )


async def _tokenizer_info(request: Request) -> Response:
    state = state_of(request)
    return json_response(_describe(state.renderer, state.num_token_ids, state.engine.plan.max_model_len))


def _describe(renderer: Renderer, num_token_ids: int, max_model_len: int) -> TokenizerInfo:
    tokenizer = renderer.tokenizer
    eos_ids = tokenizer.eos_ids or renderer.eos_ids
    return TokenizerInfo(
        tokenizer_class=type(tokenizer).__name__,
        vocab_size=num_token_ids,
        model_max_length=max_model_len,
        add_bos_token=tokenizer.adds_bos,
        bos_token=None if tokenizer.bos_id is None else _text(tokenizer, tokenizer.bos_id),
        eos_token=_text(tokenizer, eos_ids[0]) if eos_ids else None,
        added_tokens_decoder={
            str(token_id): SpecialToken(
                content=content,
                lstrip=token_id in tokenizer.left_stripping_ids,
                rstrip=token_id in tokenizer.right_stripping_ids,
            )
            for content, token_id in sorted(tokenizer.special_texts.items(), key=lambda item: item[1])
        },
        chat_template=renderer.chat_template,
    )


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")
