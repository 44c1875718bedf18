"""What plugins do to requests, and what becomes of a request when one fails."""

from __future__ import annotations

from typing import TypeVar

import pytest

from corefw.errors import CapacityError, EngineError, RequestError
from corefw.frontend.output_processor import GenerationUpdate
from corefw.frontend.request_hooks import RequestHooks
from corefw.interfaces.hooks.front_end import (
    ChatDraft,
    ChatEditor,
    GenerationRequest,
    OutputTransform,
    OutputTransformer,
    Refusal,
    RequestValidator,
)
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.contributions import MAX_FAILURES, Contribution

REQUEST = GenerationRequest(prompt_ids=[1], params=SamplingParams())


T = TypeVar("T")


def by(value: T) -> Contribution[T]:
    return Contribution("sample", "test", "hook", value)


def update(text: str, *, last: bool = False) -> GenerationUpdate:
    return GenerationUpdate(
        index=0,
        text=text,
        token_ids=[1],
        logprobs=None,
        finish_reason=FinishReason.STOP if last else None,
        stop_reason=None,
        num_prompt_tokens=1,
        num_cached_tokens=0,
        extra={},
    )


class Editor(ChatEditor):
    """Adds a tool, and changes the copy that it got."""

    def edit(self, chat: ChatDraft) -> ChatDraft:
        chat.messages[0]["content"] = "changed"  # type: ignore[index]
        return ChatDraft(messages=chat.messages, tools=[{"type": "function"}], template_kwargs=chat.template_kwargs)


class FailingEditor(ChatEditor):
    def edit(self, chat: ChatDraft) -> ChatDraft:
        raise ValueError("broken")


class Required(FailingEditor):
    required = True


class Validator(RequestValidator):
    def __init__(self, answer: Refusal | Exception | None) -> None:
        self._answer = answer

    def validate(self, request: GenerationRequest) -> Refusal | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class Doubled(OutputTransform):
    """Gives each character twice, one piece later."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        if text == "!":
            raise ValueError("broken")
        given, self._held = self._held, text
        return "".join(character * 2 for character in given)

    def flush(self) -> str:
        return "".join(character * 2 for character in self._held)


class Doubler(OutputTransformer):
    def begin(self, request: GenerationRequest, index: int) -> OutputTransform | None:
        return Doubled() if index == 0 else None


class StrictDoubler(Doubler):
    required = True


def texts(hooks: RequestHooks, *pieces: str) -> str:
    transforms = hooks.transforms(REQUEST, 0)
    assert transforms is not None
    updates = [update(piece, last=i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return "".join(transforms.apply(each).text for each in updates)


def test_an_editor_changes_messages_and_tools_but_nothing_of_the_callers() -> None:
    messages, variables = [{"role": "user", "content": "given"}], {"x": 1}
    edited, kwargs = RequestHooks([by(Editor())]).edit(messages, variables)
    assert edited == [{"role": "user", "content": "changed"}]
    assert kwargs == {"x": 1, "tools": [{"type": "function"}]}
    assert (messages[0]["content"], variables) == ("given", {"x": 1})


def test_an_editor_that_fails_is_left_out_and_then_quarantined(caplog: pytest.LogCaptureFixture) -> None:
    hooks = RequestHooks([by(FailingEditor()), by(Editor())])
    for _ in range(MAX_FAILURES + 1):
        edited, _ = hooks.edit([{"role": "user", "content": "given"}], None)
        assert edited[0]["content"] == "changed"
    assert sum("test/sample" in record.getMessage() for record in caplog.records) == MAX_FAILURES


def test_what_is_required_fails_the_request_every_time() -> None:
    hooks = RequestHooks([by(Required())], [by(Validator(KeyError("broken")))])
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(EngineError, match="plugin test/sample failed on this request"):
            hooks.edit([], None)
        with pytest.raises(EngineError, match="plugin test/sample failed on this request"):
            hooks.check(REQUEST)


def test_a_validators_reason_and_what_it_raises_for_the_client_are_the_answer() -> None:
    with pytest.raises(RequestError, match="too late") as caught:
        RequestHooks(validators=[by(Validator(Refusal("too late", param="seed", code="late")))]).check(REQUEST)
    assert (caught.value.param, caught.value.code) == ("seed", "late")
    for error in (RequestError("not so"), CapacityError("come again")):
        with pytest.raises(type(error), match=str(error)):
            RequestHooks(validators=[by(Validator(error))]).check(REQUEST)
    assert RequestHooks(validators=[by(Validator(None))]).check(REQUEST) is None  # type: ignore[func-returns-value]


def test_transforms_stand_one_behind_the_other_and_give_all_at_the_end() -> None:
    assert texts(RequestHooks(transformers=[by(Doubler())]), "a", "bc", "", "d") == "aabbccdd"
    assert texts(RequestHooks(transformers=[by(Doubler()), by(Doubler())]), "a", "b") == "aaaabbbb"
    assert RequestHooks(transformers=[by(Doubler())]).transforms(REQUEST, 1) is None


def test_after_a_failing_transform_the_text_goes_past_it_or_the_request_fails() -> None:
    assert texts(RequestHooks(transformers=[by(Doubler())]), "a", "b", "!", "c") == "aa!c"
    with pytest.raises(EngineError, match="test/sample"):
        texts(RequestHooks(transformers=[by(StrictDoubler())]), "a", "!")


def test_a_validator_cannot_change_what_runs() -> None:
    class Greedy(RequestValidator):
        def validate(self, request: GenerationRequest) -> Refusal | None:
            request.prompt_ids.clear()  # type: ignore[attr-defined]
            return None

    ids = [1, 2]
    with pytest.raises(EngineError):
        RequestHooks(validators=[by(Greedy())]).check(GenerationRequest(prompt_ids=ids, params=SamplingParams()))
    assert ids == [1, 2]


@pytest.mark.parametrize("answer", [Refusal(5), "no", SystemExit(1)])  # type: ignore[arg-type]
def test_a_validator_that_answers_nonsense_or_asks_for_the_end_fails_the_request(answer: object) -> None:
    class Nonsense(RequestValidator):
        def validate(self, request: GenerationRequest) -> Refusal | None:
            if isinstance(answer, SystemExit):
                raise answer
            return answer  # type: ignore[return-value]

    with pytest.raises(EngineError, match="plugin test/sample failed on this request"):
        RequestHooks(validators=[by(Nonsense())]).check(REQUEST)
