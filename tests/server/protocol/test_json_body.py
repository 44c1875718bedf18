"""Bodies that are no good JSON, and those that only look so."""

from __future__ import annotations

import time

import pytest

from corefw.errors import RequestError
from corefw.server.protocol.json_body import MAX_DEPTH, parse_object


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a": 1',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"[1]",
        b'"text"',
        b"1",
        b"null",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": 01}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\\ud83d"}',
        b'{"a": ["x", {"b": "\\udc00\\ud800"}]}',
        b'{"\\ud83d": 1}',
        b'{"a": "\\u0000"}',
        b'{"a": "\x00"}',
        b'{"a": "\xed\xa0\xbd"}',
        b'{"a": "\xff"}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": 1} {"b": 2}',
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a":' + b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH + b"}",
    ],
)
def test_a_bad_body_is_refused_at_once_and_in_few_words(body: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    assert time.monotonic() - started < 1.0
    assert caught.value.status == 400
    assert len(caught.value.message) < 200
    assert "Error" not in caught.value.message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": 1.5, "b": [true, null]}', {"a": 1.5, "b": [True, None]}),
        (b' {"a": "\\ud83d\\udc4b"}\n', {"a": "👋"}),
        ('{"a": "👋\\\\u0000"}'.encode(), {"a": "👋\\u0000"}),
        (b'{"a": 9223372036854775808}', {"a": 2**63}),
        (b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}", None),
    ],
)
def test_a_good_body_is_read(body: bytes, expected: object) -> None:
    data = parse_object(body)
    assert expected is None or data == expected


def test_the_path_of_bad_text_is_told() -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(b'{"messages": [{"content": "fine"}, {"content": "\\ud83d"}]}')
    assert caught.value.param == "messages[1].content"


def test_a_million_token_ids_are_read_quickly() -> None:
    body = b'{"prompt": [' + b"12345," * 999_999 + b"1]}"
    started = time.monotonic()
    assert len(parse_object(body)["prompt"]) == 1_000_000
    assert time.monotonic() - started < 1.0
