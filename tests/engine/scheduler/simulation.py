"""A worker without tensors: what it keeps of a token is the whole history up to it, so every wrong read shows."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True)
class Group:
    """Layers that read all that came before, or a window of so many tokens up to and with their own."""

    block_size: int = BLOCK_SIZE
    window: int | None = None

    def first_read(self, position: int) -> int:
        """The first position that the token at this one reads."""
        return 0 if self.window is None else max(0, position + 1 - self.window)


@dataclass
class HeldRequest:
    """A request in the worker's batch; ``tables`` has one list of blocks a group."""

    tokens: list[int]
    num_prompt_tokens: int
    tables: list[list[int]]
    num_computed_tokens: int
    params: SamplingParams
    is_spoilt: bool = False


class SimulatedWorker:
    """Applies each step's differences, computes it on its slots, and finds fault with anything inconsistent.

    All groups have the same slots, as their layers have the same pages: a block that two of them use shows.
    """

    def __init__(
        self, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int, groups: Sequence[Group] = (Group(),)
    ) -> None:
        self.held: dict[str, HeldRequest] = {}
        self.num_times_finished: dict[str, int] = {}
        self._groups = groups
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._slots: list[dict[int, object]] = [{} for _ in range(num_blocks)]
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
        for held in self.held.values():
            self._forget_unread(held)
        assert len(self.held) <= self._max_num_seqs
        for block_ids in scheduled.block_ids_to_zero:
            for block_id in block_ids:
                self._slots[block_id] = {}

    def _add(self, request: NewRequest) -> None:
        assert request.request_id not in self.held
        self.held[request.request_id] = HeldRequest(
            tokens=[*request.prompt_ids, *request.output_ids],
            num_prompt_tokens=len(request.prompt_ids),
            tables=[list(block_ids) for block_ids in request.block_ids],
            num_computed_tokens=request.num_computed_tokens,
            params=request.params,
        )

    def _go_on(self, scheduled: SchedulerOutput) -> None:
        cached = scheduled.cached_requests
        columns = (cached.num_computed_tokens, cached.num_output_tokens, cached.new_block_ids)
        for request_id, num_computed, num_outputs, new_block_ids in zip(cached.request_ids, *columns, strict=True):
            held = self.held[request_id]
            assert held.num_computed_tokens == num_computed
            assert len(held.tokens) - held.num_prompt_tokens == num_outputs
            for table, block_ids in zip(held.tables, new_block_ids, strict=True):
                table += block_ids

    def _forget_unread(self, held: HeldRequest) -> None:
        """Blocks before a window may be somebody else's by now."""
        for group, table in zip(self._groups, held.tables, strict=True):
            num_unread = min(len(table), group.first_read(held.num_computed_tokens) // group.block_size)
            table[:num_unread] = [0] * num_unread

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
        sampled = [self._sample(self.held[request_id], count) for request_id, count in counts.items()]
        return ModelRunnerOutput(request_ids=list(counts), sampled_token_ids=sampled)

    def spoil(self, request_id: str, count: int, *, computed: bool = True) -> None:
        """Leave rubbish in the slots of a request's last ``count`` computed tokens, or of its next ones."""
        held = self.held[request_id]
        held.is_spoilt = True  # should a step on its way go on with it, nothing can be expected
        start = held.num_computed_tokens - (count if computed else 0)
        for group, table in zip(self._groups, held.tables, strict=True):
            for position in range(start, start + count):
                self._slots[table[position // group.block_size]][position % group.block_size] = "rubbish"

    def skip(self, scheduled: SchedulerOutput) -> None:
        """A step that fails before anything of it is done."""
        assert scheduled.step == self._last_step + 1
        self._last_step = scheduled.step

    def expect_again(self, failed: SchedulerOutput, *, was_applied: bool) -> None:
        """After a failed step all whom it would have made the worker forget are named once more."""
        self._last_step = failed.step
        again = failed.preempted_request_ids + (failed.finished_request_ids if was_applied else [])
        for request_id in again:
            self.num_times_finished[request_id] = self.num_times_finished.get(request_id, 0) - 1

    def _write(self, held: HeldRequest, count: int, written: set[tuple[int, int]]) -> None:
        start, end = held.num_computed_tokens, held.num_computed_tokens + count
        assert end <= len(held.tokens)
        tables = [table for other in self.held.values() for table in other.tables]
        for index, (group, table) in enumerate(zip(self._groups, held.tables, strict=True)):
            for position in range(start, end):
                block_id, offset = table[position // group.block_size], position % group.block_size
                assert block_id != 0
                assert (block_id, offset) not in written, "two rows write to one slot"
                assert sum(block_id in other for other in tables) == 1, "a shared block is written to"
                written.add((block_id, offset))
                self._slots[block_id][offset] = (index, history_after(held.tokens[: position + 1]))
        held.num_computed_tokens = end

    def _sample(self, held: HeldRequest, count: int) -> list[int]:
        end = held.num_computed_tokens
        for index, (group, table) in enumerate(zip(self._groups, held.tables, strict=True)):
            for position in range(group.first_read(end - count), end):
                found = self._slots[table[position // group.block_size]].get(position % group.block_size)
                expected = (index, history_after(held.tokens[: position + 1]))
                assert found == expected or held.is_spoilt, f"position {position} reads foreign KV in group {index}"
        if end < len(held.tokens):
            return []
        token_id = next_token(held.tokens, held.params.seed or 0)
        held.tokens.append(token_id)
        return [token_id]

    def _check_sharing(self) -> None:
        """Requests share a block only where both have it full and the tokens up to its end are the same."""
        owner: dict[int, tuple[int, int, HeldRequest]] = {}
        for held in self.held.values():
            for group_id, (group, table) in enumerate(zip(self._groups, held.tables, strict=True)):
                real = [block_id for block_id in table if block_id != 0]
                assert len(set(real)) == len(real)
                assert table[len(table) - len(real) :] == real, "a null block behind a real one"
                first_read = group.first_read(held.num_computed_tokens)
                assert (len(table) - len(real)) * group.block_size <= first_read, "a null block would be read"
                for index, block_id in enumerate(table):
                    if block_id == 0:
                        continue
                    other_group, other_index, other = owner.setdefault(block_id, (group_id, index, held))
                    if other is not held:
                        end = (index + 1) * group.block_size
                        assert (group_id, index) == (other_group, other_index)
                        assert min(held.num_computed_tokens, other.num_computed_tokens) >= end
                        assert held.tokens[:end] == other.tokens[:end]
                    else:
                        assert (group_id, index) == (other_group, other_index), "two groups have one block"
