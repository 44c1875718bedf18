"""The admission limit: what doesn't fit is told so before it costs anything; every place comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corefw.errors import CapacityError, RequestError
from corefw.interfaces.endpoint import Endpoint
from corefw.server.admission import Admission
from corefw.server.state import state_of
from corefw.testing.scripted_engine import ScriptedFailure
from tests.server.serving import Running, events, scripted, serving, wait_until

LIMIT = 4


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.floats(0, 9)), max_size=40))
def test_never_more_than_the_limit_and_never_a_place_lost(steps: list[tuple[int, bool, float]]) -> None:
    clock, held = Clock(), []
    admission = Admission(LIMIT, clock)
    for num_sequences, ends_oldest, seconds in steps:
        clock.now_s += seconds
        place = admission.places(num_sequences)
        room = LIMIT - sum(num for num, _ in held)
        try:
            place.__enter__()
        except RequestError:
            assert num_sequences > LIMIT
        except CapacityError:
            assert room < num_sequences <= LIMIT
        else:
            assert num_sequences <= room
            held.append((num_sequences, place))
        assert admission.num_admitted == sum(num for num, _ in held) <= LIMIT
        if ends_oldest and held:
            held.pop(0)[1].__exit__(None, None, None)
    for _, place in held:
        place.__exit__(None, None, None)
    assert admission.num_admitted == 0


def test_the_time_to_wait_follows_the_rate_at_which_places_become_free() -> None:
    clock = Clock()
    admission = Admission(2, clock)
    for _ in range(5):
        with admission.places(1):
            clock.now_s += 3.0
    with admission.places(2):
        assert [_wait_s(admission, num_sequences) for num_sequences in (1, 2)] == [3, 6]
        clock.now_s += 12.0  # nobody ends any more
        assert _wait_s(admission, 1) == 6
        clock.now_s += 1e6
        assert _wait_s(admission, 1) == 60


def test_who_knows_nothing_says_one_second() -> None:
    admission = Admission(1, Clock())
    with admission.places(1):
        assert _wait_s(admission, 1) == 1


def _wait_s(admission: Admission, num_sequences: int) -> int:
    with pytest.raises(CapacityError) as caught, admission.places(num_sequences):
        pass
    return caught.value.retry_after_s


@pytest.fixture
def server() -> Iterator[Running]:
    with serving(scripted("x" * 1000, delay_s=0.01), max_concurrent_requests=LIMIT) as running:
        yield running
        wait_until(lambda: running.state.admission.num_admitted == 0)


@contextlib.contextmanager
def full(server: Running, **fields: Any) -> Iterator[None]:
    """All places are taken for the length of a block."""
    body = {"prompt": ["a"] * LIMIT, "max_tokens": 900, "stream": True, **fields}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as answer:
        assert answer.status_code == 200
        yield


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "a"}),
        ("completions", {"prompt": "a", "stream": True}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True}),
    ],
)
def test_what_does_not_fit_is_told_when_to_come_again(server: Running, path: str, body: dict[str, Any]) -> None:
    with full(server):
        answer = server.post(path, body)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "capacity")
    assert "--max-concurrent-requests" in error["message"]
    assert len(server.engine.requests) == LIMIT


def test_places_are_counted_by_prompts_and_choices(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 900, "stream": True, "n": LIMIT - 1}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30):
        assert server.state.admission.num_admitted == LIMIT - 1
        assert server.post("completions", {"prompt": "a", "n": 2, "max_tokens": 1}).status_code == 429
        assert server.post("completions", {"prompt": ["a", "b"], "max_tokens": 1}).status_code == 429
        assert server.post("completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_what_can_never_fit_is_the_clients_error(server: Running) -> None:
    answer = server.post("completions", {"prompt": ["a"] * (LIMIT + 1)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert "retry-after" not in answer.headers


def test_health_and_reports_are_never_limited(server: Running) -> None:
    with full(server):
        for path in ("/health", "/ping", "/metrics", "/v1/models", "/version"):
            assert server.get(path).status_code == 200


def test_a_client_that_goes_gives_its_places_back(server: Running) -> None:
    with full(server):
        pass
    wait_until(lambda: server.state.admission.num_admitted == 0)
    assert server.post("completions", {"prompt": ["a"] * LIMIT, "max_tokens": 1}).status_code == 200


def test_a_client_that_goes_without_reading_anything_gives_its_places_back(server: Running) -> None:
    body = b'{"prompt": ["a", "b", "c", "d"], "max_tokens": 900}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head % len(body) + body)
        wait_until(lambda: server.state.admission.num_admitted == LIMIT)
    wait_until(lambda: server.state.admission.num_admitted == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", [{"prompt": ""}, {"prompt": "x" * 3000}, {"prompt": "a", "max_tokens": -1}])
def test_a_request_that_is_refused_holds_no_place(server: Running, wrong: dict[str, Any], stream: bool) -> None:
    assert server.post("completions", {**wrong, "stream": stream}).status_code == 400
    assert server.state.admission.num_admitted == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_gives_its_place_back(stream: bool) -> None:
    with serving(scripted(failure=ScriptedFailure(after_tokens=2)), max_concurrent_requests=1) as server:
        for _ in range(3):
            answer = server.post("completions", {"prompt": "a", "stream": stream})
            assert "scripted failure" in answer.text
        assert server.state.admission.num_admitted == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_time_is_over_gives_its_place_back(stream: bool) -> None:
    engine = scripted("x" * 1000, delay_s=0.01)
    with serving(engine, max_concurrent_requests=1, request_timeout=0.2) as server:
        for _ in range(2):
            answer = server.post("completions", {"prompt": "a", "max_tokens": 900, "stream": stream})
            assert "request_timeout" in answer.text
        assert server.state.admission.num_admitted == 0


def test_the_openai_clients_own_retries_get_in() -> None:
    with serving(scripted("x" * 1000, delay_s=0.01), max_concurrent_requests=1) as server:
        holder = threading.Thread(target=server.post, args=("completions", {"prompt": "a", "max_tokens": 50}))
        holder.start()
        wait_until(lambda: server.state.admission.num_admitted == 1)
        patient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
        begun = time.monotonic()
        answer = patient.completions.create(model="demo", prompt="a", max_tokens=1)
        assert answer.choices[0].text == "x"
        assert time.monotonic() - begun >= 0.9  # as long as it was told to wait
        holder.join()
        with pytest.raises(openai.RateLimitError), full_of_one(server):
            server.openai().completions.create(model="demo", prompt="a", max_tokens=1)


@contextlib.contextmanager
def full_of_one(server: Running) -> Iterator[None]:
    body = {"prompt": "a", "max_tokens": 900, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30):
        yield


def test_many_clients_at_once_never_exceed_the_limit_and_leave_nothing() -> None:
    most = 0
    with serving(scripted("x" * 30, delay_s=0.002), max_concurrent_requests=3) as server:
        statuses: list[int] = []

        def client(number: int) -> None:
            nonlocal most
            for turn in range(6):
                body = {"prompt": "a", "n": 1 + (number + turn) % 3, "stream": bool(turn % 2)}
                statuses.append(server.post("completions", body).status_code)
                most = max(most, len(server.engine.running))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 6
        assert most <= 3
        wait_until(lambda: server.state.admission.num_admitted == 0)


def test_a_stream_that_begins_is_never_refused_in_the_middle(server: Running) -> None:
    answer = server.post("completions", {"prompt": ["a"] * LIMIT, "max_tokens": 5, "stream": True})
    assert events(answer)[-1] == "[DONE]"


def test_what_is_generated_in_held_places_takes_no_more() -> None:
    admission = Admission(3, Clock())
    with admission.places(2):
        with admission.generating(1), admission.generating(1):
            assert admission.num_admitted == 2
            with admission.generating(1):
                assert admission.num_admitted == 3
        with admission.generating(2):
            assert admission.num_admitted == 2
    assert admission.num_admitted == 0


def test_what_is_generated_without_held_places_takes_its_own() -> None:
    admission = Admission(2, Clock())
    with admission.places(1):
        pass
    with admission.generating(1), admission.generating(1):
        assert admission.num_admitted == 2
        with pytest.raises(CapacityError), admission.generating(1):
            pass
    with pytest.raises(RequestError), admission.generating(3):
        pass
    assert admission.num_admitted == 0


class OwnEndpoint(Endpoint):
    """A pack's route that generates and knows nothing of places."""

    name = "own"
    prefix = ""

    def routes(self) -> list[Route]:
        return [Route("/own/{n:int}", _own)]


async def _own(request: Request) -> Response:
    state, n = state_of(request), request.path_params["n"]
    params = state.sampling_defaults.params(max_tokens=200, n=n)
    text = "".join([update.text async for update in state.text.generate([1], params)])
    return Response(text)


@pytest.mark.parametrize("n", [1, 2])
def test_a_route_that_knows_nothing_of_places_is_limited_as_well(n: int) -> None:
    with serving(scripted("x" * 200, delay_s=0.01), endpoints=[OwnEndpoint()], max_concurrent_requests=2) as server:
        first = threading.Thread(target=server.get, args=("/own/2",))
        first.start()
        wait_until(lambda: server.state.admission.num_admitted == 2)
        assert server.post("completions", {"prompt": "a"}).status_code == 429
        refused = server.get(f"/own/{n}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "capacity")
        first.join()
        assert server.get("/own/3").status_code == 400
        assert len(server.get(f"/own/{n}").text) == n * 200
        assert server.state.admission.num_admitted == 0
