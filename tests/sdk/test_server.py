"""An endpoint that is written on the facade alone, on a real server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from corefw.errors import CapacityError
from corefw.interfaces.endpoint import Endpoint
from corefw.sdk.server import (
    EventStream,
    RequestShape,
    ServerState,
    json_response,
    off_loop,
    read_object,
    state_of,
)
from tests.server.serving import MODEL, VOCAB_SIZE, events, scripted, serving


class LettersRequest(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str | None = None
    stream: bool = False


class Letters(msgspec.Struct, kw_only=True):
    text: str
    num_token_ids: int


LETTERS_REQUEST = RequestShape(struct=LettersRequest, neutral={"best_of": (1,)}, ignored=frozenset({"user"}))


class LettersEndpoint(Endpoint):
    name = "letters"
    prefix = ""

    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/letters", _letters, methods=["POST"]), Route("/full", _full)]

    async def startup(self, state: ServerState) -> None:
        self.served = state.model_names


async def _full(_: Request) -> Response:
    raise CapacityError("come again")


async def _letters(request: Request) -> Response:
    state = state_of(request)
    fields = LETTERS_REQUEST.decode(await read_object(request))
    state.served_name(fields.model)
    if fields.stream:
        return EventStream(_pieces(state, fields.text), state.in_flight)
    texts = [piece.text async for piece in _pieces(state, fields.text)]
    return json_response(Letters(text="".join(texts), num_token_ids=state.num_token_ids))


async def _pieces(state: ServerState, text: str) -> AsyncGenerator[Letters, None]:
    ids = await off_loop(len(text), state.renderer.render_text, text, param="text")
    async for update in state.text.generate(ids, state.sampling_defaults.params(max_tokens=5)):
        yield Letters(text=update.text, num_token_ids=state.num_token_ids)


def test_it_generates_whole_and_streamed() -> None:
    endpoint = LettersEndpoint()
    with serving(scripted("Hello, world!"), endpoints=[endpoint]) as server:
        assert endpoint.served == (MODEL,)
        answer = server.post("../letters", {"text": "a", "best_of": 1, "user": "me"})
        assert answer.json() == {"text": "Hello", "num_token_ids": VOCAB_SIZE}
        *pieces, done = events(server.post("../letters", {"text": "a", "stream": True}))
        assert done == "[DONE]"
        assert "".join(msgspec.json.decode(piece, type=Letters).text for piece in pieces) == "Hello"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"text": "a", "txt": "b"}, 400, "txt"),
        ({"text": 1}, 400, "text"),
        ({"text": ""}, 400, "text"),
        ({"text": "a", "best_of": 2}, 400, "best_of"),
        ({"text": "a", "model": "other"}, 404, "model"),
    ],
)
def test_what_it_refuses_has_the_apis_shape(body: dict[str, object], status: int, param: str) -> None:
    with serving(scripted(), endpoints=[LettersEndpoint()]) as server:
        answer = server.post("../letters", body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_what_it_raises_becomes_an_answer() -> None:
    with serving(scripted(), endpoints=[LettersEndpoint()]) as server:
        answer = server.get("/full")
        assert (answer.status_code, answer.json()["error"]["message"]) == (429, "come again")
        assert answer.headers["retry-after"]
