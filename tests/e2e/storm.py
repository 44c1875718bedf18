"""Requests of every kind that arrive at once, of which many clients leave at a random moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx

BAD: tuple[tuple[int, dict[str, Any]], ...] = (
    (400, {"n": 0}),
    (400, {"temperature": -1}),
    (400, {"max_tokens": "many"}),
    (400, {"prompt": [999_999]}),
    (400, {"prompt": ""}),
    (400, {"prompt": "x" * 5000}),
    (400, {"logit_bias": {"-5": 1}}),
    (400, {"stop": 7}),
    (404, {"model": "another"}),
)


@dataclass
class Tally:
    """What clients saw.

    Attributes:
        reasons: sequences of complete answers, by finish reason.
        num_left: sequences at most that a client left; the server may never have heard of some.
        num_refused: bad requests.
        wrong: what should not have happened.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    num_left: int = 0
    num_refused: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def num_answered(self) -> int:
        return sum(self.reasons.values())


async def storm(url: str, model: str, num_requests: int, *, seed: int, tally: Tally, num_connections: int = 24) -> None:
    """Send so many requests over so many connections at once, and note in ``tally`` what came of them.

    A connection serves until its client leaves in the middle of a request; then there is another one.
    """
    draw = random.Random(seed)
    drawn = iter([_drawn(draw, model) for _ in range(num_requests)])

    async def work() -> None:
        connection = _Connection(httpx.URL(url))
        for path, body, status, patience_s in drawn:
            try:
                async with asyncio.timeout(patience_s):
                    answer = await connection.post(path, body)
            except TimeoutError:
                tally.num_left += body.get("n", 1)
                connection.close()
            else:
                _note(answer, body, status, tally)
        connection.close()

    await asyncio.gather(*(work() for _ in range(num_connections)))


class _Connection:
    """One to the server, made when there is none. May be closed in the middle of everything."""

    def __init__(self, url: httpx.URL) -> None:
        self._url = url
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._url.host, self._url.port)
            self._protocol = h11.Connection(h11.CLIENT)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        headers = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(content))}
        request = h11.Request(method="POST", target=path, headers=list(headers.items()))
        for event in (request, h11.Data(data=content), h11.EndOfMessage()):
            writer.write(self._protocol.send(event) or b"")
        return await self._answer(reader)

    async def _answer(self, reader: asyncio.StreamReader) -> httpx.Response:
        status, content = 0, b""
        while not isinstance(event := self._protocol.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                content += event.data
            else:
                raise AssertionError(f"the server said {event}")
        if self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE:
            self._protocol.start_next_cycle()
        else:
            self.close()
        return httpx.Response(status, content=content)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _drawn(draw: random.Random, model: str) -> tuple[str, dict[str, Any], int, float]:
    """Path, body, status, and how long the client waits."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": draw.randrange(1, 40),
        "n": draw.choice([1, 1, 1, 1, 2, 3]),
        "seed": draw.randrange(1000),
        "priority": draw.randrange(-2, 3),
        "temperature": draw.choice([0, 0.7, 1.0]),
    }
    text = f"Story {draw.randrange(12)}: " + "once upon a time " * draw.randrange(4)
    if draw.random() < 0.1:
        status, wrong = draw.choice(BAD)
        return "/v1/completions", {**body, "prompt": text, "n": 1, **wrong}, status, 60.0
    body |= {"stream": True} if draw.random() < 0.5 else {}
    body |= {"stop": ["e", "q", "\n"]} if draw.random() < 0.4 else {"ignore_eos": True}
    body |= {"presence_penalty": 0.5, "repetition_penalty": 1.2} if draw.random() < 0.2 else {}
    patience_s = draw.choice([0.005, 0.02, 0.1, 0.3, 60.0, 60.0, 60.0])
    if draw.random() < 0.5:
        body |= {"logprobs": True, "top_logprobs": 2} if draw.random() < 0.3 else {}
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}, 200, patience_s
    body |= {"logprobs": 2} if draw.random() < 0.3 else {}
    body |= {"echo": True} if draw.random() < 0.3 else {}
    return "/v1/completions", {**body, "prompt": text}, 200, patience_s


def _note(answer: httpx.Response, body: dict[str, Any], status: int, tally: Tally) -> None:
    if answer.status_code != status:
        tally.wrong.append(f"{answer.status_code} instead of {status}: {body} {answer.text[:300]}")
    elif status != 200:
        tally.num_refused += 1
    else:
        reasons = _reasons(answer, bool(body.get("stream")))
        tally.reasons.update(reasons)
        if len(reasons) != body["n"] or not set(reasons) <= {"stop", "length"}:
            tally.wrong.append(f"finish reasons {reasons}: {body} {answer.text[-300:]}")


def _reasons(answer: httpx.Response, is_stream: bool) -> list[str]:
    """Finish reasons of a complete answer; none of a stream that broke off."""
    if not is_stream:
        return [choice["finish_reason"] for choice in answer.json()["choices"]]
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        return []
    choices = [choice for event in events[:-1] for choice in json.loads(event).get("choices", ())]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
