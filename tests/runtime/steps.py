"""A hand-made scheduler for runner tests: keeps the truth about requests, makes complete steps, takes results."""

from __future__ import annotations

from dataclasses import dataclass, field

from corefw.messages.outputs import ModelRunnerOutput
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass
class Sequence:
    request_id: str
    prompt_ids: list[int]
    params: SamplingParams = GREEDY
    eos_ids: tuple[int, ...] = ()
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    in_worker: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)


class HandScheduler:
    """One KV-cache group unless told otherwise. A sequence has units of blocks: one block in each group."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4, num_groups: int = 1) -> None:
        self.block_size = block_size
        self.num_groups = num_groups
        self.free = list(range(1, 1 + (num_blocks - 1) // num_groups))
        self.sequences: dict[str, Sequence] = {}
        self.finished: list[str] = []
        self.preempted: list[str] = []
        self.step = 0

    def add(self, sequence: Sequence) -> Sequence:
        self.sequences[sequence.request_id] = sequence
        return sequence

    def finish(self, request_id: str) -> Sequence:
        sequence = self.sequences.pop(request_id)
        self.finished.append(request_id)
        self.free += sequence.block_ids
        return sequence

    def preempt(self, request_id: str) -> None:
        sequence = self.sequences[request_id]
        if sequence.in_worker:
            self.preempted.append(request_id)
        self.free += sequence.block_ids
        sequence.block_ids, sequence.num_computed, sequence.in_worker = [], 0, False

    def schedule(self, counts: dict[str, int] | None = None) -> SchedulerOutput:
        """By default every request computes all it can."""
        if counts is None:
            counts = {one.request_id: one.num_tokens - one.num_computed for one in self.sequences.values()}
        new, zeroed = [], []
        cached: dict[str, list] = {"ids": [], "computed": [], "outputs": [], "blocks": []}
        for request_id, count in counts.items():
            sequence = self.sequences[request_id]
            fresh = self._grow(sequence, sequence.num_computed + count)
            zeroed += fresh
            if sequence.in_worker:
                cached["ids"].append(request_id)
                cached["computed"].append(sequence.num_computed)
                cached["outputs"].append(len(sequence.output_ids))
                cached["blocks"].append(self._block_ids(fresh))
            else:
                new.append(self._new(sequence))
            sequence.in_worker = True
            sequence.num_computed += count
        self.step += 1
        output = SchedulerOutput(
            step=self.step,
            new_requests=new,
            cached_requests=CachedRequests(
                request_ids=cached["ids"],
                num_computed_tokens=cached["computed"],
                num_output_tokens=cached["outputs"],
                new_block_ids=cached["blocks"],
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            finished_request_ids=self.finished,
            preempted_request_ids=self.preempted,
            block_ids_to_zero=self._block_ids(zeroed),
        )
        self.finished, self.preempted = [], []
        return output

    def update(self, result: ModelRunnerOutput) -> None:
        for request_id, token_ids in zip(result.request_ids, result.sampled_token_ids, strict=True):
            if request_id in self.sequences:
                self.sequences[request_id].output_ids += token_ids

    def _new(self, sequence: Sequence) -> NewRequest:
        return NewRequest(
            request_id=sequence.request_id,
            prompt_ids=sequence.prompt_ids,
            output_ids=list(sequence.output_ids),
            params=sequence.params,
            eos_ids=sequence.eos_ids,
            block_ids=self._block_ids(sequence.block_ids),
            num_computed_tokens=sequence.num_computed,
        )

    def _block_ids(self, units: list[int]) -> list[list[int]]:
        """By group; a block belongs to one group alone."""
        return [[1 + (unit - 1) * self.num_groups + group for unit in units] for group in range(self.num_groups)]

    def _grow(self, sequence: Sequence, num_tokens: int) -> list[int]:
        needed = -(-num_tokens // self.block_size) - len(sequence.block_ids)
        fresh = [self.free.pop(0) for _ in range(needed)]
        sequence.block_ids += fresh
        return fresh
