"""How much of a step one request may take."""

from __future__ import annotations

from corefw.config.engine_config import SchedulerConfig

__all__ = ["share_limit"]


def share_limit(limits: SchedulerConfig, num_eligible: int) -> int:
    """Tokens that a request gets of a step at most, so that a long prompt doesn't starve the others.

    Args:
        limits: the thresholds.
        num_eligible: requests that run or could. A request that is alone starves nobody.
    """
    threshold, budget = limits.long_prefill_token_threshold, limits.max_num_batched_tokens
    if threshold == 0 or num_eligible <= 1:
        return budget
    if limits.adaptive_long_prefill_threshold:
        threshold = max(threshold, budget // num_eligible)
    return min(threshold, budget)
