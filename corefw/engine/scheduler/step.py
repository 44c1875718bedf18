"""The step that is being put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from corefw.engine.request import Request
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput

__all__ = ["StepBuilder"]


@dataclass(slots=True)
class _Share:
    """What one request takes of a step.

    ``block_ids`` is set for a request that the worker doesn't hold: all its blocks.
    """

    request: Request
    num_tokens: int
    new_block_ids: list[list[int]]
    block_ids: list[list[int]] | None


@dataclass(slots=True)
class StepBuilder:
    """Collects shares under a token budget; a share can be given back until the step is built."""

    token_budget: int
    num_groups: int
    preempted_ids: list[str] = field(default_factory=list)
    _shares: dict[str, _Share] = field(default_factory=dict)

    @property
    def has_shares(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._shares)

    def add(
        self,
        request: Request,
        num_tokens: int,
        new_block_ids: list[list[int]],
        block_ids: list[list[int]] | None = None,
    ) -> None:
        """Give a request its share."""
        self._shares[request.request_id] = _Share(request, num_tokens, new_block_ids, block_ids)
        self.token_budget -= num_tokens

    def take_back(self, request: Request) -> bool:
        """Note that the request was preempted, and take its tokens back. Whether it had a share already."""
        self.preempted_ids.append(request.request_id)
        share = self._shares.pop(request.request_id, None)
        if share is None:
            return False
        self.token_budget += share.num_tokens
        return True

    def build(self, step: int, finished_ids: list[str]) -> SchedulerOutput:
        """The step as the executor gets it."""
        shares = self._shares.values()
        num_scheduled = {request_id: share.num_tokens for request_id, share in self._shares.items()}
        return SchedulerOutput(
            step=step,
            new_requests=[_new_request(share.request, share.block_ids) for share in shares if share.block_ids],
            cached_requests=_cached_requests([share for share in shares if not share.block_ids]),
            num_scheduled_tokens=num_scheduled,
            total_num_scheduled_tokens=sum(num_scheduled.values()),
            finished_request_ids=finished_ids,
            preempted_request_ids=self.preempted_ids,
            block_ids_to_zero=[
                [block_id for share in shares for block_id in share.new_block_ids[group]]
                for group in range(self.num_groups)
            ],
        )


def _new_request(request: Request, block_ids: list[list[int]]) -> NewRequest:
    return NewRequest(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids,
        params=request.params,
        eos_ids=request.eos_ids,
        block_ids=block_ids,
        num_computed_tokens=request.num_computed_tokens,
        extra=request.extra,
    )


def _cached_requests(shares: list[_Share]) -> CachedRequests:
    return CachedRequests(
        request_ids=[share.request.request_id for share in shares],
        num_computed_tokens=[share.request.num_computed_tokens for share in shares],
        num_output_tokens=[share.request.num_output_tokens for share in shares],
        new_block_ids=[share.new_block_ids for share in shares],
    )
