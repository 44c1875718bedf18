"""The step that is being put together."""

from __future__ import annotations

from collections.abc import Iterable

from corefw.engine.request import Request
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput

__all__ = ["StepBuilder"]

BlockIds = list[list[int]]


class StepBuilder:
    """Collects shares under a token budget; a share can be given back until the step is built.

    Attributes:
        token_budget: tokens that are left.
        max_share: tokens that one request may have at most.
        num_free_rows: requests that may still get a share.
        preempted_ids: requests that the worker has to forget.
        is_short: a running request sits this step out until blocks come free.
        growing: running requests that may want more blocks than they have for the tokens that they know.
        requests: whoever has a share, by id.
    """

    __slots__ = (
        "_all_blocks",
        "_fresh_blocks",
        "_num_groups",
        "_num_tokens",
        "growing",
        "is_short",
        "max_share",
        "num_free_rows",
        "preempted_ids",
        "requests",
        "token_budget",
    )

    def __init__(
        self, token_budget: int, num_groups: int, max_share: int | None = None, max_rows: int | None = None
    ) -> None:
        self.token_budget = token_budget
        self.max_share = token_budget if max_share is None else max_share
        self.num_free_rows = token_budget if max_rows is None else max_rows
        self.preempted_ids: list[str] = []
        self.is_short = False
        self.growing: list[Request] = []
        self.requests: dict[str, Request] = {}
        self._num_groups = num_groups
        self._num_tokens: dict[str, int] = {}
        # Requests that the worker doesn't hold, with all their blocks; they stand behind the others.
        self._all_blocks: dict[str, tuple[Request, BlockIds]] = {}
        self._fresh_blocks: dict[str, BlockIds] = {}

    def go_on(self, request: Request, num_tokens: int, new_block_ids: BlockIds | None = None) -> None:
        """Give a request its share."""
        request_id = request.request_id
        self._num_tokens[request_id] = num_tokens
        self.requests[request_id] = request
        if new_block_ids is not None:
            self._fresh_blocks[request_id] = new_block_ids
        self.token_budget -= num_tokens
        self.num_free_rows -= 1

    def begin(self, request: Request, num_tokens: int, new_block_ids: BlockIds, block_ids: BlockIds) -> None:
        """Give a request that the worker doesn't hold its share; ``block_ids`` are all its blocks."""
        self._all_blocks[request.request_id] = request, block_ids
        self.go_on(request, num_tokens, new_block_ids)

    def load(self, request: Request, new_block_ids: BlockIds) -> None:
        """Let the worker clear a request's new blocks; they are filled while it waits."""
        self._fresh_blocks[request.request_id] = new_block_ids

    def take_back(self, request: Request) -> bool:
        """Note that the request was preempted, and take its tokens back. Whether it had a share already."""
        request_id = request.request_id
        self.preempted_ids.append(request_id)
        num_tokens = self._num_tokens.pop(request_id, None)
        if num_tokens is None:
            return False
        del self.requests[request_id]  # a request that begins is never preempted: admissions come last
        self._fresh_blocks.pop(request_id, None)
        self.token_budget += num_tokens
        self.num_free_rows += 1
        return True

    def build(self, step: int, finished_ids: list[str], *, tells_tokens: bool = False) -> SchedulerOutput:
        """The step as the executor gets it.

        Args:
            step: its number.
            finished_ids: requests that the worker has to forget for good.
            tells_tokens: there are pipeline stages that have to be told what others sampled.
        """
        held = self.requests
        if self._all_blocks:
            held = {request_id: request for request_id, request in held.items() if request_id not in self._all_blocks}
        return SchedulerOutput(
            step=step,
            new_requests=[_new_request(request, block_ids) for request, block_ids in self._all_blocks.values()],
            cached_requests=self._cached_requests(held, _new_tokens(self.requests, held) if tells_tokens else []),
            num_scheduled_tokens=self._num_tokens,
            total_num_scheduled_tokens=sum(self._num_tokens.values()),
            finished_request_ids=finished_ids,
            preempted_request_ids=self.preempted_ids,
            block_ids_to_zero=_join(self._fresh_blocks.values(), self._num_groups),
        )

    def _cached_requests(self, held: dict[str, Request], new_token_ids: list[list[int]]) -> CachedRequests:
        requests, fresh_blocks = held.values(), self._fresh_blocks
        none: BlockIds = [[] for _ in range(self._num_groups)]
        return CachedRequests(
            request_ids=list(held),
            num_computed_tokens=[request.num_computed_tokens + request.num_in_flight_tokens for request in requests],
            num_output_tokens=[
                len(request.token_ids) + request.num_placeholders - request.num_prompt_tokens for request in requests
            ],
            new_block_ids=[fresh_blocks.get(request_id, none) for request_id in held],
            new_token_ids=new_token_ids,
        )


def _join(shares: Iterable[BlockIds], num_groups: int) -> BlockIds:
    joined: BlockIds = [[] for _ in range(num_groups)]
    for share in shares:
        for block_ids, fresh in zip(joined, share, strict=True):
            block_ids += fresh
    return joined


def _new_request(request: Request, block_ids: BlockIds) -> NewRequest:
    return NewRequest(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        output_ids=request.output_ids,
        params=request.params,
        eos_ids=request.eos_ids,
        block_ids=block_ids,
        num_computed_tokens=request.num_computed_tokens,
        extra=request.extra,
        prompt_embeds=request.prompt_embeds,
    )


def _new_tokens(requests: dict[str, Request], held: dict[str, Request]) -> list[list[int]]:
    """The output tokens that stages don't know yet, of the requests that they hold; those that begin tell all."""
    new_token_ids = [request.token_ids[request.num_told_tokens :] for request in held.values()]
    for request in requests.values():
        request.num_told_tokens = len(request.token_ids)
    return new_token_ids
