"""Whatever a client sends, the answer is the client's fault, small, and quick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.server.protocol.chat import CHAT_REQUEST
from corefw.server.protocol.completions import COMPLETION_REQUEST
from tests.server.serving import Running, scripted, serving

ALLOWED = {200, 400, 404, 413, 422}
FIELDS = sorted(
    {
        name
        for shape in (COMPLETION_REQUEST, CHAT_REQUEST)
        for name in (*shape.struct.__struct_fields__, *shape.neutral, *shape.ignored)
    }
)
TEXTS = st.text(max_size=8) | st.sampled_from(["", "\0", "demo", "user", "text", "a" * 300, "<|im_end|>", "\ud83d"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 257])
    | st.floats(allow_nan=True, allow_infinity=True)
    | TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "role", "include_usage", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
# Half of each body makes sense, so that the other half is reached.
COMPLETIONS = st.fixed_dictionaries({"prompt": st.just("Hi") | VALUES, "max_tokens": st.integers(1, 5) | VALUES})
CHATS = st.fixed_dictionaries(
    {
        "messages": st.just([{"role": "user", "content": "Hi"}])
        | st.lists(st.fixed_dictionaries({"role": st.just("user") | SCALARS, "content": VALUES}), max_size=3),
        "max_tokens": st.integers(1, 5),
    }
)
EXTRA = st.dictionaries(st.sampled_from(FIELDS) | TEXTS, VALUES, max_size=3)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(scripted("Hello")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as made:
        yield made


def send(client: httpx.Client, path: str, content: bytes) -> httpx.Response:
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in ALLOWED, (answer.status_code, content)
    if answer.status_code != 200:
        assert len(answer.content) < 2048
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert "Error" not in answer.json()["error"]["message"]
        assert "Traceback" not in answer.text
    elif answer.headers["content-type"] == "application/json":
        json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return answer


@settings(deadline=None, derandomize=True, max_examples=300)
@given(body=COMPLETIONS, extra=EXTRA)
def test_garbage_completions_never_break_the_server(client: httpx.Client, body: Any, extra: Any) -> None:
    send(client, "/v1/completions", json.dumps({**body, **extra}).encode())


@settings(deadline=None, derandomize=True, max_examples=300)
@given(body=CHATS, extra=EXTRA)
def test_garbage_chats_never_break_the_server(client: httpx.Client, body: Any, extra: Any) -> None:
    send(client, "/v1/chat/completions", json.dumps({**body, **extra}).encode())


@settings(deadline=None, derandomize=True, max_examples=100)
@given(content=st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_bodies_that_are_no_objects_never_break_the_server(client: httpx.Client, content: bytes) -> None:
    assert send(client, "/v1/chat/completions", content).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/jsonx"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_that_is_not_declared_as_json_is_refused(
    client: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    answer = client.post(path, content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize("field", [b'"messages": [{"role": "user", "content": "\\ud83d"}]', b'"stop": "\\ud83d"'])
def test_a_lone_surrogate_is_refused_without_exception_names(client: httpx.Client, field: bytes, stream: bytes) -> None:
    answer = send(client, "/v1/chat/completions", b'{"stream": ' + stream + b", " + field + b"}")
    assert answer.status_code == 400
    assert "Unicode" not in answer.text
    assert "codec" not in answer.text


def test_the_server_is_well_after_all_this(client: httpx.Client, server: Running) -> None:
    assert client.get("/health").status_code == 200
    assert client.post("/v1/completions", json={"prompt": "Hi"}).json()["choices"][0]["text"] == "Hello"
    assert server.metric("corefw:num_requests_running") == 0
