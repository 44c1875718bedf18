from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import CapacityError, EngineError, RequestError
from corefw.frontend.output_processor import GenerationUpdate, OutputProcessor
from corefw.messages.arrays import Array
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, PositionLogprobs, PromptLogprobs
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import RepetitionDetection, SamplingParams
from tests.frontend.vocabularies import END, byte_level

TOKENIZER = byte_level()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, parse_special=True)


def processor(*, prior: list[int] | None = None, **params: Any) -> OutputProcessor:
    request = EngineCoreRequest(
        request_id="r",
        prompt_ids=[5, 6, 7],
        params=SamplingParams(**params),
        prior_output_ids=prior or [],
        eos_ids=(END,),
    )
    return OutputProcessor(TOKENIZER, request, 2)


def output(ids: list[int], finish: FinishReason | None = None, **fields: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id="r", new_token_ids=ids, finish_reason=finish, **fields)


def play(ids: list[int], size: int, **params: Any) -> list[GenerationUpdate]:
    """Updates of a whole output that comes in pieces of that many tokens and ends at a limit."""
    pieces = [ids[i : i + size] for i in range(0, len(ids), size)] or [[]]
    made = processor(**params)
    updates = []
    for i, piece in enumerate(pieces):
        updates.append(made.process(output(piece, FinishReason.LENGTH if i == len(pieces) - 1 else None)))
        if updates[-1].finish_reason:
            break
    return updates


def text_of(updates: list[GenerationUpdate]) -> str:
    return "".join(update.text for update in updates)


def test_an_update_carries_everything_that_the_core_said() -> None:
    made = processor()
    first = made.process(output(encode("hello"), num_cached_tokens=2, extra={"probe": 1}))
    last = made.process(output(encode(" world"), FinishReason.LENGTH))
    assert first == GenerationUpdate(
        index=2,
        text="hello",
        token_ids=encode("hello"),
        logprobs=None,
        finish_reason=None,
        stop_reason=None,
        num_prompt_tokens=3,
        num_cached_tokens=2,
        extra={"probe": 1},
    )
    assert (last.text, last.finish_reason, last.num_cached_tokens) == (" world", FinishReason.LENGTH, 2)


@pytest.mark.parametrize(
    ("ids", "params", "stop_reason", "text"),
    [
        (encode("hello<|im_end|>"), {}, None, "hello"),
        (encode("hello<|im_end|>"), {"skip_special_tokens": False}, None, "hello"),
        (
            encode("hello<|im_end|>"),
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            None,
            "hello<|im_end|>",
        ),
        (encode("hello world"), {}, encode(" world")[0], "hello"),
        (encode("hello world"), {"include_stop_str_in_output": True}, encode(" world")[0], "hello world"),
        (encode("hello world"), {}, None, "hello world"),
    ],
)
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_the_token_that_ends_an_output_isnt_part_of_its_text(
    ids: list[int], params: dict[str, Any], stop_reason: int | None, text: str, stop: tuple[str, ...]
) -> None:
    update = processor(stop=stop, **params).process(output(ids, FinishReason.STOP, stop_reason=stop_reason))
    assert (update.text, update.stop_reason, update.token_ids) == (text, stop_reason, ids)


@given(
    text=st.text("ab🙂", max_size=12), size=st.integers(1, 5), begin=st.integers(0, 12), length=st.integers(1, 6),
    include=st.booleans(),
)  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=400)
def test_a_stop_string_from_the_text_cuts_it_there(
    text: str, size: int, begin: int, length: int, include: bool
) -> None:
    stop = text[begin : begin + length]
    if not stop:
        return
    ids = encode(text)
    updates = play(ids, size, stop=(stop,), include_stop_str_in_output=include)
    end = text.find(stop) + len(stop)
    assert text_of(updates) == (text[:end] if include else text[: end - len(stop)])
    assert (updates[-1].finish_reason, updates[-1].stop_reason) == (FinishReason.STOP, stop)
    used = [token_id for update in updates for token_id in update.token_ids]
    assert used == ids[: len(used)]
    assert TOKENIZER.decode(used).startswith(text[:end])
    assert not TOKENIZER.decode(used[:-1]).startswith(text[:end])


def test_logprobs_end_with_the_token_that_completed_the_stop_string() -> None:
    ids = encode("a b c d")
    logprobs = [PositionLogprobs([token_id], [-1.0], 1) for token_id in ids]
    update = processor(stop=("b",), logprobs=0).process(output(ids, logprobs=logprobs))
    assert update.token_ids == encode("a b")
    assert update.logprobs is not None
    assert [entry.token for entry in update.logprobs] == ["a", " ", "b"]


def test_a_stop_string_that_the_last_token_completes_is_found() -> None:
    updates = play(encode("abc"), 1, stop=("bc",), max_tokens=3)
    assert (text_of(updates), updates[-1].stop_reason) == ("a", "bc")


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize(
    ("min_tokens", "text", "stop_reason"),
    [(0, "x", "ab"), (3, "x", "ab"), (4, "xabx", "ab"), (6, "xabx", "ab"), (7, "xabxab", None)],
)
def test_no_stop_string_ends_an_output_before_min_tokens(
    size: int, min_tokens: int, text: str, stop_reason: str | None
) -> None:
    # six tokens: the stop string is completed by the third and by the sixth
    updates = play(encode("xabxab"), size, stop=("ab",), min_tokens=min_tokens)
    assert (text_of(updates), updates[-1].stop_reason) == (text, stop_reason)


def test_what_was_held_back_comes_with_the_end() -> None:
    assert [update.text for update in play(encode("xa"), 1, stop=("ab",))] == ["x", "a"]
    ids = encode("x🙂")[:-1]
    assert text_of(play(ids, 1)) == text_of(play(ids, 1, stop=("never",))) == "x\ufffd"


def test_logprobs_have_true_bytes_that_join_to_the_text() -> None:
    ids = encode("a🙂")
    logprobs = [PositionLogprobs([i, i, ids[0]], [-0.5, -0.5, -3.0], 1) for i in ids]
    update = processor(logprobs=2).process(output(ids, FinishReason.LENGTH, logprobs=logprobs))
    assert update.logprobs is not None
    assert b"".join(entry.bytes for entry in update.logprobs).decode() == update.text == "a🙂"
    assert update.logprobs[1].token == "\ufffd"
    assert update.logprobs[1].bytes == "🙂".encode()[:1]
    assert update.logprobs[1].top == [(ids[1], "\ufffd", "🙂".encode()[:1], -0.5), (ids[0], "a", b"a", -3.0)]
    assert (update.logprobs[0].logprob, update.logprobs[0].rank) == (-0.5, 1)


def test_fewer_logprobs_are_given_than_came_when_fewer_were_asked_for() -> None:
    logprobs = [PositionLogprobs([9, 9, 10, 11], [-1.0, -1.0, -2.0, -3.0], 1)]
    update = processor(logprobs=1).process(output([9], logprobs=logprobs))
    assert update.logprobs is not None
    assert len(update.logprobs[0].top) == 1


def test_ids_outside_the_vocabulary_are_no_text() -> None:
    assert text_of(play([10**6, *encode("a"), -1], 1, stop=("never",))) == "a"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ErrorKind.ENGINE, EngineError),
        (ErrorKind.REQUEST, RequestError),
        (ErrorKind.CAPACITY, CapacityError),
    ],
)
def test_an_error_of_the_core_is_raised_with_its_message(kind: ErrorKind, error: type[Exception]) -> None:
    with pytest.raises(error, match="no luck"):
        processor().process(output([], FinishReason.ERROR, error="no luck", error_kind=kind))


def test_the_prompts_log_probabilities_come_with_a_gap_for_its_first_token() -> None:
    told = PromptLogprobs(
        token_ids=Array.from_numpy(np.array([[6, 9], [7, 7]], np.int32)),
        logprobs=Array.from_numpy(np.array([[-3.0, -0.5], [-0.25, -0.25]], np.float32)),
        ranks=Array.from_numpy(np.array([4, 1], np.int32)),
    )
    update = processor(prompt_logprobs=1).process(output([5], prompt_logprobs=told))
    assert update.prompt_logprobs is not None
    none, second, third = update.prompt_logprobs
    assert none is None
    assert second is not None
    assert (second.token_id, second.logprob, second.rank, second.top[0][0]) == (6, -3.0, 4, 9)
    assert third is not None
    assert (third.token_id, third.rank) == (7, 1)


def test_all_log_probabilities_are_all_that_came() -> None:
    entry = PositionLogprobs([5, *range(9)], [-1.0] * 10, 3)
    update = processor(logprobs=-1).process(output([5], logprobs=[entry]))
    assert update.logprobs is not None
    assert len(update.logprobs[0].top) == 9


def test_without_detokenising_there_are_ids_and_no_text() -> None:
    updates = play(encode("hello world"), 2, detokenize=False)
    assert text_of(updates) == ""
    assert [i for update in updates for i in update.token_ids] == encode("hello world")


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_an_output_that_repeats_itself_ends_at_the_token_that_completes_it(size: int, stop: tuple[str, ...]) -> None:
    ids = [*encode("hello"), *encode("in") * 5]
    wanted = RepetitionDetection(max_pattern_size=3, min_count=3)
    updates = play(ids, size, repetition_detection=wanted, stop=stop)
    assert text_of(updates) == "helloininin"
    assert (updates[-1].finish_reason, updates[-1].stop_reason) == (FinishReason.LENGTH, "repetition_detected")
    assert sum(len(update.token_ids) for update in updates) == 1 + 3 * len(encode("in"))
    assert play(ids, size, repetition_detection=wanted, min_tokens=20)[-1].stop_reason is None


@given(data=st.data(), text=st.text(alphabet="ab é🙂\n", min_size=1, max_size=12))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_an_output_taken_over_at_any_token_goes_on_where_it_was(data: st.DataObject, text: str) -> None:
    ids = encode(text)
    taken = data.draw(st.integers(0, len(ids) - 1))
    stop = data.draw(st.sampled_from([(), ("🙂\n",), ("ab", "é "), ("zz",)]))
    min_tokens = data.draw(st.integers(0, 3))
    params: dict[str, Any] = {"stop": stop, "min_tokens": min_tokens, "max_tokens": 100}
    whole = play(ids, 1, **params)
    first = processor(**params)
    before = [first.process(output([token_id])) for token_id in ids[:taken]]
    if any(update.finish_reason for update in before):
        return
    second = processor(prior=ids[:taken], **params)
    after = []
    for i, token_id in enumerate(ids[taken:], start=taken + 1):
        after.append(second.process(output([token_id], FinishReason.LENGTH if i == len(ids) else None)))
        if after[-1].finish_reason:
            break
    assert text_of(before) + text_of(after) == text_of(whole)
    assert after[-1].finish_reason == whole[-1].finish_reason
    assert after[-1].stop_reason == whole[-1].stop_reason
