from __future__ import annotations

import pytest

from corefw.engine.request import Request
from corefw.engine.scheduler.stopping import Stop, check_stop
from corefw.messages.outputs import FinishReason
from corefw.messages.sampling import SamplingParams
from tests.engine.scheduler.setup import make_request

EOS, STOP, PLAIN = 100, 101, 102


def check(outputs: list[int], *, num_prompt: int = 3, context: int = 50, **params: object) -> Stop | None:
    values: dict[str, object] = {"max_tokens": 10, "stop_token_ids": (STOP,)}
    sampling = SamplingParams(**(values | params))  # type: ignore[arg-type]
    raw = make_request("a", num_prompt, params=sampling, eos_ids=(EOS,), prior_output_ids=outputs)
    return check_stop(Request(raw), context)


def test_an_ordinary_token_ends_nothing() -> None:
    assert check([PLAIN]) is None


def test_an_end_token_stops_without_a_stop_reason() -> None:
    assert check([PLAIN, EOS]) == Stop(FinishReason.STOP, None)


def test_a_stop_token_stops_and_is_named() -> None:
    assert check([STOP]) == Stop(FinishReason.STOP, STOP)


def test_only_the_last_token_counts() -> None:
    assert check([EOS, PLAIN]) is None


def test_ignored_end_tokens_stop_nothing_but_a_stop_token_of_the_same_id_does() -> None:
    assert check([EOS], ignore_eos=True) is None
    assert check([EOS], ignore_eos=True, stop_token_ids=(EOS,)) == Stop(FinishReason.STOP, EOS)


def test_an_end_token_that_is_a_stop_token_too_counts_as_the_end_token() -> None:
    assert check([EOS], stop_token_ids=(EOS,)) == Stop(FinishReason.STOP, None)


@pytest.mark.parametrize("token_id", [EOS, STOP])
def test_nothing_stops_before_min_tokens(token_id: int) -> None:
    assert check([PLAIN, token_id], min_tokens=3) is None
    assert check([PLAIN, PLAIN, token_id], min_tokens=3) is not None


def test_max_tokens_ends_with_length() -> None:
    assert check([PLAIN] * 9) is None
    assert check([PLAIN] * 10) == Stop(FinishReason.LENGTH)


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    assert check([*[PLAIN] * 9, EOS]) == Stop(FinishReason.STOP)
    assert check([PLAIN, STOP], context=5) == Stop(FinishReason.STOP, STOP)


def test_limits_hold_below_min_tokens_too() -> None:
    assert check([EOS], min_tokens=5, context=4) == Stop(FinishReason.LENGTH)


def test_a_full_context_ends_with_length() -> None:
    assert check([PLAIN], context=5, max_tokens=None) is None
    assert check([PLAIN, PLAIN], context=5, max_tokens=None) == Stop(FinishReason.LENGTH)
