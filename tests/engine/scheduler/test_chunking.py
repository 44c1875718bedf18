from __future__ import annotations

import pytest

from corefw.config.engine_config import SchedulerConfig
from corefw.engine.scheduler.chunking import share_limit


def limit(num_eligible: int, threshold: int, *, adaptive: bool = False, budget: int = 100) -> int:
    limits = SchedulerConfig(
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        adaptive_long_prefill_threshold=adaptive,
    )
    return share_limit(limits, num_eligible)


@pytest.mark.parametrize(("num_eligible", "expected"), [(0, 100), (1, 100), (2, 10), (50, 10)])
def test_the_threshold_holds_while_others_are_there(num_eligible: int, expected: int) -> None:
    assert limit(num_eligible, 10) == expected


@pytest.mark.parametrize(("num_eligible", "expected"), [(1, 100), (2, 50), (4, 25), (10, 10), (50, 10)])
def test_an_adaptive_threshold_is_never_below_the_even_share(num_eligible: int, expected: int) -> None:
    assert limit(num_eligible, 10, adaptive=True) == expected


def test_without_a_threshold_and_above_the_budget_the_budget_is_the_limit() -> None:
    assert limit(5, 0) == 100
    assert limit(5, 1000) == 100
