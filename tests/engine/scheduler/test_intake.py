from __future__ import annotations

import pytest

from corefw.config.engine_config import SchedulerConfig
from corefw.engine.scheduler.intake import check_request
from corefw.errors import ContextLengthError, RequestError
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from tests.engine.scheduler.setup import make_request

VOCAB_SIZE = 1_000_000_000
LIMITS = SchedulerConfig(max_num_batched_tokens=8)
WHOLE = SchedulerConfig(max_num_batched_tokens=8, enable_chunked_prefill=False)


def refusal(request: EngineCoreRequest, limits: SchedulerConfig = LIMITS) -> RequestError | None:
    try:
        check_request(request, limits, max_model_len=20, vocab_size=VOCAB_SIZE)
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize("num_tokens", [1, 18, 19])
def test_a_prompt_that_leaves_room_for_a_token_is_taken(num_tokens: int) -> None:
    assert refusal(make_request("a", num_tokens)) is None


@pytest.mark.parametrize("num_tokens", [20, 21, 1000])
def test_a_prompt_that_leaves_no_room_is_refused_with_the_figures(num_tokens: int) -> None:
    error = refusal(make_request("a", num_tokens))
    assert isinstance(error, ContextLengthError)
    assert f"the prompt has {num_tokens} tokens and the context 20" in error.message
    assert "at most 19 tokens" in error.message


def test_an_empty_prompt_is_refused() -> None:
    error = refusal(make_request("a", 0))
    assert error is not None
    assert error.param == "prompt"


def test_several_outputs_of_one_request_are_refused() -> None:
    error = refusal(make_request("a", params=SamplingParams(n=2)))
    assert error is not None
    assert error.param == "n"


def test_without_chunks_a_prompt_longer_than_a_step_is_refused_and_the_remedy_named() -> None:
    assert refusal(make_request("a", 8), WHOLE) is None
    error = refusal(make_request("a", 9), WHOLE)
    assert error is not None
    assert "--enable-chunked-prefill" in error.message
    assert "at most 8" in error.message


def test_outputs_that_come_with_a_request_do_not_get_it_refused() -> None:
    assert refusal(make_request("a", 8, prior_output_ids=[1] * 9), WHOLE) is None


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 2**40])
def test_ids_without_an_embedding_are_refused_wherever_they_come_from(wrong: int) -> None:
    prompt = EngineCoreRequest(request_id="a", prompt_ids=[5, wrong], params=SamplingParams())
    prior = EngineCoreRequest(request_id="a", prompt_ids=[5], params=SamplingParams(), prior_output_ids=[9, wrong])
    for request in (prompt, prior):
        error = refusal(request)
        assert error is not None
        assert f"[0, {VOCAB_SIZE - 1}]" in error.message
    assert refusal(EngineCoreRequest(request_id="a", prompt_ids=[0, VOCAB_SIZE - 1], params=SamplingParams())) is None
