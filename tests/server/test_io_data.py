"""Requests through an IO processor: what it may return and raise, and that its context always ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from corefw.errors import CapacityError, RequestError
from corefw.interfaces.io_processor import IOContext, IOOutput, IOProcessor, IOPrompt
from tests.server.serving import Running, scripted, serving, wait_until

PROMPT = IOPrompt(text="Hello")


class Counted(IOContext):
    """Counts what happens to contexts, by the name in their data."""

    seen: Counter[tuple[str, str]] = Counter()
    in_use: set[int] = set()
    closed_in_use: list[str] = []

    def note(self, what: str) -> None:
        Counted.seen[str(self.request.data), what] += 1

    def close(self) -> None:
        self.note("closed")
        if id(self) in Counted.in_use:
            Counted.closed_in_use.append(str(self.request.data))
        if self.request.data == "close_bug":
            raise RuntimeError("secret")


async def _generator() -> AsyncIterator[IOPrompt]:
    yield PROMPT


async def _coroutine() -> IOPrompt:
    return PROMPT


def _raising(error: Exception) -> Callable[[IOContext], Any]:
    def call(_: IOContext) -> Any:
        raise error

    return call


def _replaced(context: IOContext, **values: Any) -> IOPrompt:
    context.params = msgspec.structs.replace(context.params, **values)
    return PROMPT


def _slow(context: IOContext) -> IOPrompt:
    Counted.in_use.add(id(context))
    time.sleep(0.5)
    Counted.in_use.discard(id(context))
    return PROMPT


PRE: dict[str, Callable[[IOContext], Any]] = {
    "single": lambda _: PROMPT,
    "list": lambda _: [PROMPT, IOPrompt(token_ids=[65, 66])],
    "tuple": lambda _: (PROMPT,),
    "none": lambda _: None,
    "empty": lambda _: [],
    "dict": lambda _: {"prompt": "Hello"},
    "text": lambda _: "Hello",
    "mixed": lambda _: [PROMPT, "Hello"],
    "generator": lambda _: _generator(),
    "coroutine": lambda _: _coroutine(),
    "neither": lambda _: IOPrompt(),
    "both": lambda _: IOPrompt(text="a", token_ids=[1]),
    "embedded text": lambda _: IOPrompt(text="a", embeds={0: 1}),
    "other n": lambda context: _replaced(context, n=2),
    "bug": _raising(RuntimeError("secret")),
    "value": _raising(ValueError("secret")),
    "missing": _raising(KeyError("task")),
    "refused": _raising(RequestError("not that one", param="colour")),
    "full": _raising(CapacityError("later")),
    "short": lambda context: _replaced(context, max_tokens=2),
    "slow": _slow,
}


class Various(IOProcessor):
    """Does what data say."""

    name = "various"

    def begin(self, request: Any) -> IOContext:
        if request.data == "no context":
            return None  # type: ignore[return-value]
        return Counted(request)

    def parse(self, context: IOContext) -> Any:
        assert isinstance(context, Counted)
        context.note("parsed")
        match context.request.data:
            case "parse bug":
                raise KeyError("secret")
            case "parse value":
                raise ValueError("no such colour")
            case "parse answer":
                return "ok"
            case {"colour": _}:
                raise RequestError("no such colour", param="colour")

    def pre_process(self, context: IOContext) -> Any:
        return PRE.get(str(context.request.data), lambda _: PROMPT)(context)

    def post_process(self, context: IOContext, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        match context.request.data:
            case "post bug":
                raise RuntimeError("secret")
            case "post set":
                return {1, 2}
            case "post coroutine":
                return _coroutine()
        return [[(output.text, len(output.token_ids), output.finish_reason) for output in each] for each in outputs]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(scripted("Hello, world!", delay_s=0.002), processor=Various) as made:
        yield made


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    Counted.seen.clear()
    caplog.set_level(logging.CRITICAL, logger="corefw.server")


def ask(running: Running, data: Any, **fields: Any) -> httpx.Response:
    return running.post("completions", {"data": data, "max_tokens": 50, **fields})


def closed(data: Any) -> int:
    return Counted.seen[str(data), "closed"]


@pytest.mark.parametrize(("data", "num_prompts"), [("single", 1), ("list", 2), ("tuple", 1), ({"any": [1]}, 1)])
def test_one_prompt_and_a_list_of_them_are_answered(running: Running, data: Any, num_prompts: int) -> None:
    answer = ask(running, data, n=2).json()
    assert answer["data"] == [[["Hello, world!", 14, "stop"]] * 2] * num_prompts
    assert answer["choices"] == []
    assert answer["usage"]["completion_tokens"] == 28 * num_prompts
    assert closed(data) == 1


@pytest.mark.parametrize(
    "data",
    ["none", "empty", "dict", "text", "mixed", "generator", "coroutine", "neither", "both", "embedded text", "other n"],
)
def test_what_isnt_a_prompt_is_a_500_that_says_what_it_is(running: Running, data: str) -> None:
    answer = ask(running, data)
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message.startswith("IO processor test/processor failed in pre_process on this request; ")
    assert "the log has" not in message
    assert closed(data) == 1


@pytest.mark.parametrize(
    ("data", "method"),
    [
        ("bug", "pre_process"),
        ("value", "pre_process"),
        ("missing", "pre_process"),
        ("parse bug", "parse"),
        ("parse answer", "parse"),
        ("post bug", "post_process"),
        ("post set", "post_process"),
        ("post coroutine", "post_process"),
    ],
)
def test_a_failure_is_a_500_that_names_processor_and_method_alone(running: Running, data: str, method: str) -> None:
    answer = ask(running, data)
    assert answer.status_code == 500
    assert f"IO processor test/processor failed in {method}" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert closed(data) == 1


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ("parse value", "data"),
        ({"colour": 1}, "data.colour"),
        ("refused", "data.colour"),
    ],
)
def test_what_the_client_got_wrong_is_a_400_with_its_field(running: Running, data: Any, param: str) -> None:
    answer = ask(running, data)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert closed(data) == 1


def test_no_room_is_a_429(running: Running) -> None:
    answer = ask(running, "full")
    assert (answer.status_code, closed("full")) == (429, 1)


def test_a_processor_without_a_context_is_a_500(running: Running) -> None:
    answer = ask(running, "no context")
    assert answer.status_code == 500
    assert "failed in begin" in answer.json()["error"]["message"]


def test_a_failing_close_changes_no_answer(running: Running) -> None:
    assert ask(running, "close_bug").status_code == 200
    assert closed("close_bug") == 1


def test_the_processor_may_say_how_a_prompt_is_continued(running: Running) -> None:
    assert ask(running, "short").json()["data"] == [[["He", 2, "length"]]]


@pytest.mark.parametrize("fields", [{"prompt": "x"}, {"prompt_embeds": "x"}, {"stream": True}, {"echo": True}])
def test_what_doesnt_go_with_data_is_refused(running: Running, fields: dict[str, Any]) -> None:
    answer = ask(running, "single", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, *fields)


def test_data_without_a_processor_are_refused() -> None:
    with serving(scripted()) as plain:
        answer = ask(plain, "single")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "data")
        assert "--io-processor-plugin" in answer.json()["error"]["message"]


def test_requests_beside_a_failing_one_are_unharmed(running: Running) -> None:
    kinds = ["bug", "single", "parse value", "none", "list", "post bug"] * 8
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda data: ask(running, data), kinds))
    assert [answer.status_code for answer in answers] == [500, 200, 400, 500, 200, 500] * 8
    assert {kind: closed(kind) for kind in kinds} == dict.fromkeys(kinds, 8)
    assert running.post("completions", {"prompt": "x", "max_tokens": 50}).json()["choices"][0]["text"]


def test_a_client_that_goes_while_a_thread_works_closes_the_context_when_the_thread_has_ended(
    running: Running,
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{running.url}/v1/completions", json={"data": "slow"}, timeout=0.15)
    wait_until(lambda: closed("slow") == 1)
    assert Counted.closed_in_use == []


def test_a_client_that_goes_while_the_engine_works_closes_the_context() -> None:
    with serving(scripted("x" * 1000, delay_s=0.02), processor=Various) as slow:
        sent = threading.Thread(target=_give_up, args=(slow,))
        sent.start()
        wait_until(lambda: slow.state.admission.num_admitted == 1)
        sent.join()
        wait_until(lambda: closed("single") == 1)
        wait_until(lambda: slow.state.admission.num_admitted == 0)


def _give_up(running: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{running.url}/v1/completions", json={"data": "single", "max_tokens": 900}, timeout=0.5)
