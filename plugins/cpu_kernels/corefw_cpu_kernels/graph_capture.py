"""Recorded steps: every kernel that a step calls, with its arguments, replayed in one call into the library.

While a step is recorded its kernels compute as ever. What torch computes can't be on the tape, so a watch over torch's
dispatcher lets views and new memory pass, has kernels do what they can do (copies, products with a number), and refuses
the step at anything else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import torch

from corefw.interfaces.graphs import CaptureRefused, GraphCapture, Recording
from corefw_cpu_kernels import library
from corefw_cpu_kernels.calls import Argument, Call, Tape, name_of
from corefw_cpu_kernels.torch_watch import TorchWatch

__all__ = ["CpuGraphCapture", "CpuRecording"]

_ALIGNMENT = 64
_MIB = 2**20


class CpuRecording(Recording):
    """Calls in pieces. Made by ``CpuGraphCapture``."""

    def __init__(
        self,
        functions: Sequence[int],
        args: Sequence[np.ndarray[Any, np.dtype[np.int64]]],
        starts: Sequence[int],
        kept: object,
        outputs: Sequence[torch.Tensor],
        num_bytes: int,
    ) -> None:
        self._kept = kept
        self._args = np.concatenate(args) if args else np.zeros(0, np.int64)
        offsets = np.cumsum([0, *(len(one) for one in args)])[:-1]
        calls = np.empty((len(functions), 2), np.int64)
        calls[:, 0] = functions
        calls[:, 1] = self._args.ctypes.data + 8 * offsets
        self._calls = calls
        ends = [*starts[1:], len(functions)]
        self._pieces = [
            (ctypes.c_void_p(calls.ctypes.data + 16 * start), ctypes.c_int64(end - start))
            for start, end in zip(starts, ends, strict=True)
        ]
        self._replay, self._replay_timed = library.library().ck_replay, library.library().ck_replay_timed
        self.outputs = tuple(outputs)
        self.num_bytes = num_bytes + self._args.nbytes + calls.nbytes

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self, piece: int = 0) -> None:
        self._replay(*self._pieces[piece])

    def times_ms(self, piece: int = 0) -> list[tuple[str, float]]:
        first, count = self._pieces[piece]
        nanoseconds = np.zeros(count.value, np.int64)
        self._replay_timed(first, count, ctypes.c_void_p(nanoseconds.ctypes.data))
        start = sum(earlier.value for _, earlier in self._pieces[:piece])
        names = [name_of(address) for address in self._calls[start : start + count.value, 0].tolist()]
        return list(zip(names, (nanoseconds / 1e6).tolist(), strict=True))


class CpuGraphCapture(GraphCapture):
    """Records steps on the processor. What they compute in between lies in one memory for all recordings."""

    name: ClassVar[str] = "cpu_kernels"
    is_cheap: ClassVar[bool] = True
    default_mode: ClassVar[str] = "full_decode_only"

    def __init__(self) -> None:
        self._shared = torch.empty(0, dtype=torch.uint8)
        self._log = Tape()
        self._watch = TorchWatch()
        self._starts: list[int] = []
        self._pinned: list[torch.Tensor] = []
        self._open = ExitStack()

    def begin(self) -> None:
        self._log, self._watch = Tape(), TorchWatch()
        self._starts, self._pinned = [], []
        self.resume()

    def pause(self, seen: Sequence[torch.Tensor]) -> None:
        self._open.close()
        self._pinned += seen

    def resume(self) -> None:
        self._starts.append(len(self._log.calls))
        self._open.enter_context(self._log.record())
        self._open.enter_context(self._watch)

    def cancel(self) -> None:
        self._open.close()
        self._log, self._watch, self._pinned = Tape(), TorchWatch(), []

    def end(self, outputs: Sequence[torch.Tensor]) -> Recording:
        self._open.close()
        if self._watch.refusal is not None:
            raise CaptureRefused(self._watch.refusal)
        plan = _MemoryPlan(self._watch.made, self._log.calls, self._pinned, outputs)
        num_bytes = plan.pinned_bytes + self._reserve(plan.size)
        args = [plan.moved(packed, given, self._shared) for _, packed, given in self._log.calls]
        kept = (self._shared, self._pinned, [_kept(given, plan) for *_, given in self._log.calls])
        moved = [plan.moved_tensor(tensor, self._shared) for tensor in outputs]
        functions = [function for function, *_ in self._log.calls]
        return CpuRecording(functions, args, self._starts, kept, moved, num_bytes)

    def reserve_bytes(self, step_bytes: int, num_recordings: int) -> int:
        """Memory for the largest step, twice: it may have been made for smaller ones first."""
        return 2 * step_bytes + 64 * _MIB + num_recordings * _MIB // 4

    def _reserve(self, size: int) -> int:
        """Have that much shared memory; earlier recordings keep theirs. Returns what is new."""
        if size <= self._shared.numel():
            return 0
        self._shared = torch.empty(max(size, 2 * self._shared.numel()) + _ALIGNMENT, dtype=torch.uint8)
        return self._shared.numel()


class _MemoryPlan:
    """Where the results of a step's calls lie: memory is used again once the last call that reads it is over.

    Args:
        made: what was allocated while the step was recorded.
        calls: of the step.
        pinned: tensors that stay where they are.
        outputs: tensors that are read after the last call.
    """

    def __init__(
        self,
        made: Sequence[torch.Tensor],
        calls: Sequence[Call],
        pinned: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        self._sizes = {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in made}
        pins = {_storage(tensor) for tensor in pinned}
        self.pinned_bytes = sum(self._sizes.get(pin, 0) for pin in pins)
        for pin in pins:
            self._sizes.pop(pin, None)
        self._refuse_hidden_addresses(calls)
        spans: dict[int, tuple[int, int]] = {}
        for index, (*_, args) in enumerate(calls):
            for tensor in args:
                if isinstance(tensor, torch.Tensor) and (key := _storage(tensor)) in self._sizes:
                    spans[key] = spans.get(key, (index, index))[0], index
        for tensor in outputs:
            if (key := _storage(tensor)) in self._sizes:
                spans[key] = spans.get(key, (0, 0))[0], len(calls)
        self._offsets, self.size = _placed(spans, self._sizes)

    def moved(
        self, packed: bytes, args: tuple[Argument, ...], memory: torch.Tensor
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A call's arguments with the addresses that the plan gives its tensors."""
        words = np.frombuffer(packed, np.int64).copy()
        for place, tensor in enumerate(args):
            if isinstance(tensor, torch.Tensor) and (key := _storage(tensor)) in self._offsets:
                words[place] += self._base(memory) + self._offsets[key] - key
        return words

    def moved_tensor(self, tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """A tensor where the plan has it."""
        key = _storage(tensor)
        if key not in self._offsets:
            return tensor
        start = self._base(memory) + self._offsets[key] - memory.data_ptr() + tensor.storage_offset() * tensor.itemsize
        moved = torch.empty(0, dtype=tensor.dtype)
        return moved.set_(memory.untyped_storage(), start // tensor.itemsize, tensor.shape, tensor.stride())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is in the plan."""
        return _storage(tensor) in self._sizes

    def _refuse_hidden_addresses(self, calls: Sequence[Call]) -> None:
        """A number that is an address of memory to be moved would go on pointing to where it was."""
        starts = np.array(sorted(self._sizes), np.int64)
        sizes = np.array([self._sizes[start] for start in starts.tolist()], np.int64)
        numbers = np.array([a for *_, args in calls for a in args if isinstance(a, int) and a > 2**32], np.int64)
        if len(starts) and len(numbers):
            places = np.searchsorted(starts, numbers, side="right") - 1
            if bool(((places >= 0) & (numbers < (starts + sizes)[places])).any()):
                raise CaptureRefused("a kernel got the address of a result as a number")

    @staticmethod
    def _base(memory: torch.Tensor) -> int:
        return -(-memory.data_ptr() // _ALIGNMENT) * _ALIGNMENT


def _placed(spans: dict[int, tuple[int, int]], sizes: dict[int, int]) -> tuple[dict[int, int], int]:
    """Offsets by key, and the size of all: each at the first gap that is free from its first call to its last."""
    offsets: dict[int, int] = {}
    live: list[tuple[int, int, int]] = []  # offset, end, last call
    total = 0
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        live = [one for one in live if one[2] >= first]
        size = -(-max(sizes[key], 1) // _ALIGNMENT) * _ALIGNMENT
        at = 0
        for start, end, _ in sorted(live):
            if start - at >= size:
                break
            at = max(at, end)
        offsets[key] = at
        live.append((at, at + size, last))
        total = max(total, at + size)
    return offsets, total


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _kept(args: tuple[Argument, ...], plan: _MemoryPlan) -> list[torch.Tensor]:
    """What a recording has to keep alive of a call: not the results that were moved."""
    return [arg for arg in args if isinstance(arg, torch.Tensor) and not plan.holds(arg)]
