from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.models.ops import filters


def _reference(logits: np.ndarray, temperature: float, min_p: float, top_k: int, top_p: float) -> np.ndarray:
    """The kept tokens' probabilities, the slow and obvious way, in float64."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    probs[probs < min_p * probs.max()] = 0
    order = np.lexsort((np.arange(len(probs)), -probs))
    if 0 < top_k < len(probs):
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    if top_p < 1:
        mass = 0.0
        for token in order:
            if mass >= top_p:
                probs[token] = 0
            mass += probs[token]
    return probs / probs.sum()


def _filtered(logits: torch.Tensor, temperature: float, min_p: float, top_k: int, top_p: float) -> torch.Tensor:
    rows = len(logits)
    weights = filters.weights_of(filters.scaled_logits(logits, torch.full((rows,), temperature, dtype=torch.float64)))
    weights = filters.drop_unlikely(weights, torch.full((rows,), min_p, dtype=torch.float64))
    weights = filters.keep_top(weights, torch.full((rows,), top_k), torch.full((rows,), top_p, dtype=torch.float64))
    return weights / weights.sum(-1, keepdim=True)


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([1, 2, 7, 63, 64, 65, 3000]),
    spread=st.sampled_from([0.01, 1.0, 5.0, 30.0]),
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 2.0, 100.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 63, 64, 65, 1023, 1024, 1025, 2**40]),
    top_p=st.sampled_from([1e-9, 0.1, 0.7, 0.95, 1.0]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_filters_keep_what_the_obvious_algorithm_keeps(
    seed: int, vocab_size: int, spread: float, temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, (2, vocab_size)).astype(np.float32)
    got = _filtered(torch.from_numpy(logits), temperature, min_p, top_k, top_p).numpy()
    for row, one in zip(got, logits, strict=True):
        expected = _reference(one, temperature, min_p, top_k, top_p)
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(1, 1.0, [0]), (3, 1.0, [0, 1, 2]), (0, 0.5, [0, 1, 2, 3])])
def test_among_equal_tokens_the_lowest_ids_stay(top_k: int, top_p: float, kept: list[int]) -> None:
    weights = _filtered(torch.zeros(1, 8), 1.0, 0.0, top_k, top_p)
    assert weights[0].nonzero().squeeze(-1).tolist() == kept


def test_a_tiny_top_p_keeps_the_most_likely_token() -> None:
    weights = _filtered(torch.tensor([[0.0, 3.0, 1.0]]), 1.0, 0.0, 0, 1e-300)
    assert weights.tolist() == [[0.0, 1.0, 0.0]]


def test_a_flat_distribution_needs_more_candidates_than_the_first_look_has() -> None:
    weights = _filtered(torch.zeros(1, 40_000), 1.0, 0.0, 0, 0.9)
    assert int((weights > 0).sum()) == pytest.approx(36_000, abs=1)


def test_tokens_without_probability_are_never_chosen_at_either_end_of_the_range() -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    numbers = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert filters.choose(weights, numbers).tolist() == [1, 3]
