from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.models.ops.definitions import MAX_RANDOM_ROWS
from corefw.runtime.sampling.sampler import Sampler, SamplerOutput
from tests.runtime.sampling.parameters import metadata

VOCAB = 50_000


def _logits(rows: int, vocab_size: int = VOCAB, seed: int = 0, spread: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def _sample(
    logits: torch.Tensor, rows: list[dict[str, Any]], vocab_size: int | None = None, mode: str = "raw_logprobs"
) -> SamplerOutput:
    return Sampler(vocab_size or logits.shape[-1], mode)(logits.clone(), metadata(rows))


_KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "num_logprobs": 5},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_k": 2000, "top_p": 0.95, "num_logprobs": 2},
    {"temperature": 5.0, "min_p": 0.1, "top_p": 0.99},
    {"temperature": 1e-5},
    {"temperature": 100.0, "num_logprobs": 0},
    {"temperature": 1.0, "banned": [1, 5, 77]},
    {"temperature": 0.0, "prompt": [4, 9, 3000], "output": [9, 9, 77], "repetition": 1.7, "num_logprobs": 3},
    {"temperature": 0.8, "output": [*range(0, 900, 3), 6, 6], "presence": 0.7, "frequency": -0.3, "top_p": 0.9},
    {"temperature": 0.0, "bias": {17: 30.0, 18: -2.5}, "banned": [17]},
    {"temperature": 1.1, "allowed": [3, 700, 3999], "num_logprobs": 4},
    {"temperature": 0.0, "early": lambda logits: -logits},
    {"temperature": 0.9, "late": lambda scaled: scaled * 3, "top_k": 50, "num_logprobs": 1},
]
_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_greedy_rows_by_themselves_get_what_they_get_beside_others(dtype: torch.dtype) -> None:
    logits = _logits(40, 9_000, spread=0.5).to(dtype)  # so near each other that the largest is there several times
    logits[3, 17], logits[4, 8_999], logits[5] = float("nan"), float("inf"), float("-inf")
    alone = _sample(logits, [{"temperature": 0.0}] * 40, 8_990)
    beside = _sample(torch.cat((logits, logits[:1])), [{"temperature": 0.0}] * 40 + [{"temperature": 1.0}], 8_990)
    assert torch.equal(alone.token_ids, beside.token_ids[:40])
    assert torch.equal(alone.failed, beside.failed[:40])
    assert alone.failed.nonzero().flatten().tolist() == [3, 5]
    largest = logits[0, :8_990].max()
    assert int(alone.token_ids[0]) == int((logits[0] == largest).nonzero()[0])


@pytest.mark.parametrize("mode", _MODES)
def test_a_row_gets_the_same_token_and_logprob_bits_alone_and_among_others(mode: str) -> None:
    count = 2 * MAX_RANDOM_ROWS + 3
    logits = _logits(count, 20_000)
    rows = [{**_KINDS[i % len(_KINDS)], "seed": i, "position": 3 * i} for i in range(count)]
    together = _sample(logits, rows, mode=mode)
    assert together.logprobs is not None
    columns = {int(row): index for index, row in enumerate(together.logprobs.rows)}
    for i in range(count):
        alone = _sample(logits[i : i + 1], rows[i : i + 1], mode=mode)
        assert int(alone.token_ids) == int(together.token_ids[i])
        if alone.logprobs is not None:
            width = alone.logprobs.logprobs.shape[1]
            index = columns[i]
            assert torch.equal(alone.logprobs.logprobs[0], together.logprobs.logprobs[index, :width])
            assert torch.equal(alone.logprobs.token_ids[0], together.logprobs.token_ids[index, :width])
            assert int(alone.logprobs.ranks) == int(together.logprobs.ranks[index])


@given(order=st.permutations(range(len(_KINDS))), size=st.integers(1, len(_KINDS)))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_tokens_dont_depend_on_which_rows_share_the_step(order: list[int], size: int) -> None:
    logits = _logits(len(_KINDS), 4001)
    rows = [{**kind, "seed": 11 * i} for i, kind in enumerate(_KINDS)]
    expected = _sample(logits, rows).token_ids
    chosen = order[:size]
    got = _sample(logits[chosen], [rows[i] for i in chosen]).token_ids
    assert got.tolist() == expected[chosen].tolist()


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [40_000, 9, 41_000]] = 2.0
    logits[2, [49_999, 33]] = 2.0
    rows = [{"temperature": 0.0}] * 3
    assert _sample(logits, rows).token_ids.tolist() == [0, 9, 33]
    assert [int(_sample(logits[i : i + 1], rows[:1]).token_ids) for i in range(3)] == [0, 9, 33]


def test_top_k_of_one_is_greedy_also_among_equals() -> None:
    logits = torch.zeros(2, 1000)
    logits[1, [500, 20]] = 1.0
    rows = [{"top_k": 1, "seed": seed} for seed in range(2)]
    assert _sample(logits, rows).token_ids.tolist() == [0, 20]


def test_choices_follow_the_distribution_over_seeds_and_positions() -> None:
    probs = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    logits = torch.from_numpy(np.log(probs)).float().repeat(4000, 1)
    rows = [{"seed": i % 40, "position": i // 40} for i in range(4000)]
    counts = np.bincount(_sample(logits, rows).token_ids.numpy(), minlength=5)
    expected = probs * 4000
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-square, 4 degrees of freedom, p = 0.001


def test_the_same_seed_and_position_choose_the_same_token_and_others_differ() -> None:
    logits = _logits(1, 1000, spread=0.1).repeat(64, 1)
    same = _sample(logits, [{"seed": 5, "position": 9}] * 64).token_ids
    assert len(set(same.tolist())) == 1
    by_seed = _sample(logits, [{"seed": seed} for seed in range(64)]).token_ids
    by_position = _sample(logits, [{"position": position} for position in range(64)]).token_ids
    assert len(set(by_seed.tolist())) > 50
    assert len(set(by_position.tolist())) > 50


def test_ids_beyond_the_tokenizer_are_never_sampled_or_listed() -> None:
    logits = torch.zeros(600, 128)
    logits[:, 100:] = 10.0
    rows = [{"temperature": 5.0 * (i % 2), "seed": i, "num_logprobs": 20} for i in range(600)]
    output = _sample(logits, rows, vocab_size=100)
    assert int(output.token_ids.max()) < 100
    assert output.logprobs is not None
    assert int(output.logprobs.token_ids.max()) < 100


def test_banned_ids_are_never_sampled_and_unknown_ones_are_ignored() -> None:
    logits = torch.zeros(200, 8)
    logits[:, 2] = 9.0
    rows = [{"temperature": float(i % 2), "seed": i, "banned": [2, 3, 10_000]} for i in range(200)]
    assert set(_sample(logits, rows).token_ids.tolist()) == {0, 1, 4, 5, 6, 7}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_logits_arent_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = _logits(3, 100)
    rows = [{"temperature": temperature, "num_logprobs": 2, "top_p": 0.5}] * 3
    expected = _sample(logits, rows)
    logits[1, 50] = bad
    output = _sample(logits, rows)
    assert output.failed.tolist() == [False, True, False]
    assert output.token_ids[[0, 2]].tolist() == expected.token_ids[[0, 2]].tolist()


def test_a_row_with_every_token_forbidden_fails_alone() -> None:
    output = _sample(torch.zeros(2, 3), [{"banned": [0, 1, 2]}, {}])
    assert output.failed.tolist() == [True, False]
    assert output.emptied is not None
    assert output.emptied.tolist() == [True, False]
    broken = _sample(torch.full((2, 3), torch.nan), [{"banned": [0, 1]}, {}])
    assert broken.emptied is not None
    assert broken.emptied.tolist() == [False, False]


def test_nan_beyond_the_tokenizer_fails_only_a_row_that_asked_for_logprobs() -> None:
    logits = torch.zeros(2, 8)
    logits[:, 7] = torch.nan
    output = _sample(logits, [{"num_logprobs": 1}, {}], vocab_size=6)
    assert output.failed.tolist() == [True, False]


def test_minus_infinity_is_a_legal_logit() -> None:
    logits = torch.full((2, 5), -torch.inf)
    logits[:, 3] = 1.0
    output = _sample(logits, [{"num_logprobs": 2}, {"temperature": 0.0}])
    assert output.token_ids.tolist() == [3, 3]
    assert output.logprobs is not None
    assert output.logprobs.token_ids.tolist() == [[3, 3, 0]]
    assert output.logprobs.logprobs.tolist() == [[0.0, 0.0, -torch.inf]]


def test_logprobs_are_of_the_raw_distribution_whatever_the_parameters() -> None:
    logits = _logits(1, 500)
    params = {"temperature": 3.0, "top_k": 2, "min_p": 0.01, "banned": [int(logits.argmax())], "num_logprobs": 4}
    output = _sample(logits, [params])
    assert output.logprobs is not None
    raw = torch.log_softmax(logits.double(), -1)[0]
    chosen = int(output.token_ids)
    top = raw.topk(4)
    assert output.logprobs.token_ids[0].tolist() == [chosen, *top.indices.tolist()]
    expected = torch.cat([raw[chosen : chosen + 1], top.values])
    torch.testing.assert_close(output.logprobs.logprobs[0].double(), expected, rtol=0, atol=1e-5)
    assert int(output.logprobs.ranks) == int((raw > raw[chosen]).sum()) + 1


def test_most_likely_tokens_of_equal_probability_come_in_id_order_however_many_are_wanted() -> None:
    logits = torch.zeros(1, 5000)
    for count in (1, 3, 20):
        output = _sample(logits, [{"temperature": 0.0, "num_logprobs": count}])
        assert output.logprobs is not None
        assert output.logprobs.token_ids[0].tolist() == [0, *range(count)]


def test_a_wish_for_more_logprobs_than_tokens_gets_all_tokens() -> None:
    output = _sample(torch.zeros(1, 4), [{"num_logprobs": 20}])
    assert output.logprobs is not None
    assert output.logprobs.token_ids.shape == (1, 5)


def test_rows_in_bfloat16_are_sampled_in_float32() -> None:
    logits = _logits(4, 3000).bfloat16()
    rows = [{"seed": seed, "num_logprobs": 3, "temperature": 0.9} for seed in range(4)]
    low, high = _sample(logits, rows), _sample(logits.float(), rows)
    assert low.token_ids.tolist() == high.token_ids.tolist()
    assert low.logprobs is not None
    assert high.logprobs is not None
    assert torch.equal(low.logprobs.logprobs, high.logprobs.logprobs)


@pytest.mark.parametrize("temperature", [1e-5, 2e-5, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = torch.tensor([[1e4, -1e4, 3.4e38, -3.4e38], [0.1, 0.1001, -30.0, 0.0]])
    output = _sample(logits, [{"temperature": temperature, "top_p": 0.9, "min_p": 0.01}] * 2)
    assert not output.failed.any()
    assert output.token_ids[0] == 2


def test_the_number_of_threads_doesnt_change_a_token() -> None:
    code = (
        "import sys, torch; torch.set_num_threads(int(sys.argv[1]))\n"
        "from tests.runtime.sampling.test_sampler import _KINDS, _logits, _sample\n"
        "rows = [{**kind, 'seed': i} for i, kind in enumerate(_KINDS)]\n"
        "out = _sample(_logits(len(rows)), rows)\n"
        "print(out.token_ids.tolist(), out.logprobs.logprobs.tolist())"
    )
    root = Path(__file__).parents[3]
    runs = [
        subprocess.check_output([sys.executable, "-c", code, threads], text=True, cwd=root) for threads in ("1", "4")
    ]
    assert runs[0] == runs[1]


def test_penalties_come_after_biases_and_processors_and_before_temperature() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    row = {
        "temperature": 0.5,
        "bias": {0: 3.0},
        "early": lambda logits: logits * 2,
        "prompt": [2],
        "output": [0, 0, 3],
        "repetition": 2.0,
        "presence": 0.25,
        "frequency": 0.5,
        "num_logprobs": 4,
    }
    output = _sample(logits, [row], mode="processed_logits")
    expected = [
        ((1.0 + 3.0) * 2 / 2.0 - 2 * 0.5 - 0.25) / 0.5,
        (2.0 * 2) / 0.5,
        (-1.0 * 2 * 2.0) / 0.5,  # below zero, so multiplied; in the prompt alone, so nothing is subtracted
        (0.5 * 2 / 2.0 - 0.5 - 0.25) / 0.5,
    ]
    assert output.logprobs is not None
    told = dict(zip(output.logprobs.token_ids[0, 1:].tolist(), output.logprobs.logprobs[0, 1:].tolist(), strict=True))
    assert [told[i] for i in range(4)] == pytest.approx(expected)


def test_a_banned_id_stays_banned_whatever_the_bias_and_an_id_that_isnt_allowed_too() -> None:
    logits = torch.zeros(2, 8)
    rows = [
        {"temperature": 0.0, "banned": [5], "bias": {5: 100.0}},
        {"temperature": 0.0, "allowed": [2, 3], "bias": {5: 100.0, 3: 0.5}},
    ]
    assert _sample(logits, rows).token_ids.tolist() == [0, 3]


def test_ids_that_the_model_doesnt_have_are_ignored_by_every_stage() -> None:
    logits = torch.zeros(1, 8)
    row = {"temperature": 0.0, "bias": {3: 1.0, 999: 100.0}, "allowed": [3, 999], "output": [999, 3], "presence": 0.5}
    assert _sample(logits, [row]).token_ids.tolist() == [3]


@pytest.mark.parametrize("mode", _MODES)
def test_what_logprobs_tell_is_the_modes_choice(mode: str) -> None:
    logits = _logits(2, 50)
    rows = [
        {"temperature": 0.0, "bias": {7: 9.0}, "num_logprobs": 50},
        {"temperature": 2.0, "bias": {7: 9.0}, "top_k": 3, "num_logprobs": 50},
    ]
    output = _sample(logits, rows, mode=mode)
    changed = logits.clone()
    changed[:, 7] += 9.0
    changed[1] /= 2.0
    changed[1, changed[1] < changed[1].topk(3).values[-1]] = -torch.inf
    expected = changed if mode.startswith("processed") else logits
    expected = torch.log_softmax(expected, -1) if mode.endswith("logprobs") else expected
    assert output.logprobs is not None
    for i in range(2):
        told = torch.empty(50).scatter_(0, output.logprobs.token_ids[i, 1:], output.logprobs.logprobs[i, 1:])
        torch.testing.assert_close(told, expected[i])


def test_all_logprobs_come_apart_from_those_that_ask_for_a_few() -> None:
    logits = _logits(3, 300)
    output = _sample(logits, [{"num_logprobs": -1}, {"num_logprobs": 2}, {}], vocab_size=290)
    assert output.logprobs is not None
    assert output.full_logprobs is not None
    assert (output.logprobs.rows.tolist(), output.logprobs.logprobs.shape) == ([1], (1, 3))
    assert (output.full_logprobs.rows.tolist(), output.full_logprobs.logprobs.shape) == ([0], (1, 291))
    assert output.full_logprobs.token_ids[0, 1:].sort().values.tolist() == list(range(290))
    assert output.full_logprobs.logprobs[0, 1:].diff().le(0).all()


def _raise(logits: torch.Tensor) -> torch.Tensor:
    logits.fill_(torch.nan)
    raise ValueError("out of order")


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (_raise, "out of order"),
        (lambda logits: logits[:3], "a row of 100 logits"),
        (lambda logits: None, "a row of 100 logits"),
    ],
)
@pytest.mark.parametrize("place", ["early", "late"])
def test_a_processor_that_fails_spoils_its_row_alone(place: str, processor: Any, said: str) -> None:
    logits = _logits(4, 100)
    rows: list[dict[str, Any]] = [{"seed": i, "num_logprobs": 1} for i in range(4)]
    expected = _sample(logits, rows)
    output = _sample(logits, [rows[0], {**rows[1], place: processor}, *rows[2:]])
    assert output.failed.tolist() == [False, True, False, False]
    assert said in output.errors[1]
    assert output.token_ids[[0, 2, 3]].tolist() == expected.token_ids[[0, 2, 3]].tolist()


def test_a_late_processor_that_leaves_nothing_fails_its_row() -> None:
    output = _sample(_logits(2, 100), [{"late": lambda scaled: scaled.fill_(-torch.inf)}, {}])
    assert output.failed.tolist() == [True, False]
    assert "nothing to choose" in output.errors[0]


def test_a_processor_after_temperature_is_not_called_for_greedy_rows() -> None:
    output = _sample(_logits(2, 100), [{"temperature": 0.0, "late": _raise}, {}])
    assert output.failed.tolist() == [False, False]
