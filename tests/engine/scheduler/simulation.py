"""A worker without tensors: what it keeps of a token is the whole history up to it, so every wrong read shows."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from corefw.messages.outputs import FinishReason, ModelRunnerOutput
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.messages.scheduling import NewRequest, SchedulerOutput
from tests.engine.scheduler.setup import BLOCK_SIZE

VOCAB_SIZE = 60

_histories: dict[tuple[int, ...], int] = {}


def history_after(tokens: list[int]) -> int:
    """A fingerprint of the tokens so far: the KV of the last one."""
    key = tuple(tokens)
    if key not in _histories:
        _histories[key] = int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest(), "big")
    return _histories[key]


def next_token(tokens: list[int], seed: int) -> int:
    """What the model says after these tokens; depends on every one of them."""
    return (history_after(tokens) + seed) % VOCAB_SIZE


def expected_output(request: EngineCoreRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What the request gives when nothing else runs, written as plainly as can be."""
    tokens, outputs = list(request.prompt_ids), list(request.prior_output_ids)
    tokens += outputs
    params = request.params
    while True:
        if outputs:
            if len(outputs) >= params.min_tokens and outputs[-1] in {*request.eos_ids, *params.stop_token_ids}:
                return outputs, FinishReason.STOP
            if params.max_tokens is not None and len(outputs) >= params.max_tokens:
                return outputs, FinishReason.LENGTH
            if len(tokens) >= max_model_len:
                return outputs, FinishReason.LENGTH
        token_id = next_token(tokens, params.seed or 0)
        tokens.append(token_id)
        outputs.append(token_id)


@dataclass
class HeldRequest:
    """A request in the worker's batch."""

    tokens: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    num_computed_tokens: int
    params: SamplingParams


class SimulatedWorker:
    """Applies each step's differences, computes it on its slots, and finds fault with anything inconsistent."""

    def __init__(self, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.held: dict[str, HeldRequest] = {}
        self.num_times_finished: dict[str, int] = {}
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._slots: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self._last_step = 0

    def apply(self, scheduled: SchedulerOutput) -> None:
        """Take over the step's differences."""
        assert scheduled.step == self._last_step + 1
        self._last_step = scheduled.step
        for request_id in scheduled.finished_request_ids:
            self.held.pop(request_id, None)
            self.num_times_finished[request_id] = self.num_times_finished.get(request_id, 0) + 1
        for request_id in scheduled.preempted_request_ids:
            self.held.pop(request_id)
        for request in scheduled.new_requests:
            self._add(request)
        self._go_on(scheduled)
        assert len(self.held) <= self._max_num_seqs
        for block_id in scheduled.block_ids_to_zero[0]:
            self._slots[block_id] = [None] * BLOCK_SIZE

    def _add(self, request: NewRequest) -> None:
        assert request.request_id not in self.held
        tokens = [*request.prompt_ids, *request.output_ids]
        self.held[request.request_id] = HeldRequest(
            tokens, len(request.prompt_ids), list(request.block_ids[0]), request.num_computed_tokens, request.params
        )

    def _go_on(self, scheduled: SchedulerOutput) -> None:
        cached = scheduled.cached_requests
        columns = (cached.num_computed_tokens, cached.num_output_tokens, cached.new_block_ids)
        for request_id, num_computed, num_outputs, new_block_ids in zip(cached.request_ids, *columns, strict=True):
            held = self.held[request_id]
            assert held.num_computed_tokens == num_computed
            assert len(held.tokens) - held.num_prompt_tokens == num_outputs
            held.block_ids += new_block_ids[0]

    def compute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """All writes of the step, then all reads, as a layer does."""
        counts = scheduled.num_scheduled_tokens
        assert set(counts) == {request.request_id for request in scheduled.new_requests} | set(
            scheduled.cached_requests.request_ids
        )
        assert scheduled.total_num_scheduled_tokens == sum(counts.values()) <= self._max_num_batched_tokens
        assert all(count >= 1 for count in counts.values())
        self._check_sharing()
        written: set[tuple[int, int]] = set()
        for request_id, count in counts.items():
            self._write(self.held[request_id], count, written)
        return ModelRunnerOutput(
            request_ids=list(counts), sampled_token_ids=[self._sample(self.held[request_id]) for request_id in counts]
        )

    def spoil(self, request_id: str, count: int, *, computed: bool = True) -> None:
        """Leave rubbish in the slots of a request's last ``count`` computed tokens, or of its next ones."""
        held = self.held[request_id]
        start = held.num_computed_tokens - (count if computed else 0)
        for position in range(start, start + count):
            self._slots[held.block_ids[position // BLOCK_SIZE]][position % BLOCK_SIZE] = -1

    def expect_again(self, failed: SchedulerOutput, *, was_applied: bool) -> None:
        """After a failed step all whom it would have made the worker forget are named once more."""
        self._last_step = failed.step
        again = failed.preempted_request_ids + (failed.finished_request_ids if was_applied else [])
        for request_id in again:
            self.num_times_finished[request_id] = self.num_times_finished.get(request_id, 0) - 1

    def _write(self, held: HeldRequest, count: int, written: set[tuple[int, int]]) -> None:
        start, end = held.num_computed_tokens, held.num_computed_tokens + count
        assert end <= len(held.tokens)
        for position in range(start, end):
            slot = (held.block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE)
            assert slot not in written, "two rows write to one slot"
            assert sum(slot[0] in other.block_ids for other in self.held.values()) == 1, "a shared block is written to"
            written.add(slot)
            self._slots[slot[0]][slot[1]] = history_after(held.tokens[: position + 1])
        held.num_computed_tokens = end

    def _sample(self, held: HeldRequest) -> list[int]:
        for position in range(held.num_computed_tokens):
            found = self._slots[held.block_ids[position // BLOCK_SIZE]][position % BLOCK_SIZE]
            assert found == history_after(held.tokens[: position + 1]), f"position {position} reads foreign KV"
        if held.num_computed_tokens < len(held.tokens):
            return []
        token_id = next_token(held.tokens, held.params.seed or 0)
        held.tokens.append(token_id)
        return [token_id]

    def _check_sharing(self) -> None:
        """Requests share a block only where both have it full and the tokens up to its end are the same."""
        owner: dict[int, tuple[int, HeldRequest]] = {}
        for held in self.held.values():
            assert len(set(held.block_ids)) == len(held.block_ids)
            assert 0 not in held.block_ids
            for index, block_id in enumerate(held.block_ids):
                other_index, other = owner.setdefault(block_id, (index, held))
                if other is not held:
                    end = (index + 1) * BLOCK_SIZE
                    assert index == other_index
                    assert min(held.num_computed_tokens, other.num_computed_tokens) >= end
                    assert held.tokens[:end] == other.tokens[:end]
