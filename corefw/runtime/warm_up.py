"""A tiny request before the first real one, so that nobody waits for what is set up lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.errors import EngineError
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput

if TYPE_CHECKING:
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.runtime.model_runner.runner import ModelRunner

__all__ = ["warm_up"]

_REQUEST_ID = "warm-up"
_PARAMS = SamplingParams(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, seed=0, logprobs=1)


def warm_up(runner: ModelRunner, plan: RuntimePlan, *, max_num_tokens: int) -> None:
    """A prompt, then one more token, in a block a group that is cleared afterwards; the batch ends up empty."""
    num_groups = len(plan.layer_groups)
    if plan.num_blocks <= num_groups:
        raise EngineError(
            f"the plan has {plan.num_blocks} KV blocks for {num_groups} groups; each needs one beside the null block"
        )
    block_ids = [[1 + group] for group in range(num_groups)]
    longest = min(plan.block_size, plan.max_model_len)
    num_prompt = max(1, min(2, max_num_tokens, longest - 1))
    prompt = NewRequest(
        request_id=_REQUEST_ID,
        prompt_ids=[0] * num_prompt,
        output_ids=[],
        params=_PARAMS,
        eos_ids=(),
        block_ids=block_ids,
        num_computed_tokens=0,
    )
    runner.execute_model(_step(num_groups, new=[prompt], num_tokens=num_prompt))
    runner.sample_tokens()
    if num_prompt < longest:  # whatever was sampled: all ranks take the same branch
        runner.execute_model(_step(num_groups, num_computed=num_prompt, num_tokens=1))
        runner.sample_tokens()
    runner.execute_model(_step(num_groups, finished=[_REQUEST_ID], zeroed=block_ids))
    runner.sample_tokens()


def _step(
    num_groups: int,
    *,
    num_tokens: int = 0,
    new: list[NewRequest] | None = None,
    num_computed: int | None = None,
    finished: list[str] | None = None,
    zeroed: list[list[int]] | None = None,
) -> SchedulerOutput:
    going_on = num_computed is not None
    return SchedulerOutput(
        step=0,
        new_requests=new or [],
        cached_requests=CachedRequests(
            request_ids=[_REQUEST_ID] if going_on else [],
            num_computed_tokens=[num_computed] if num_computed is not None else [],
            num_output_tokens=[1] if going_on else [],
            new_block_ids=[[[]] * num_groups] if going_on else [],
            new_token_ids=[[0]] if going_on else [],
        ),
        num_scheduled_tokens={_REQUEST_ID: num_tokens} if num_tokens else {},
        total_num_scheduled_tokens=num_tokens,
        finished_request_ids=finished or [],
        preempted_request_ids=[],
        block_ids_to_zero=zeroed or [[]] * num_groups,
    )
