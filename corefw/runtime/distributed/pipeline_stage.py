"""What one part of the layers hands to the next: tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from corefw.errors import EngineError

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.communicator import Pending
    from corefw.runtime.distributed.rank_group import RankGroup

__all__ = ["PipelineStage"]

_HEADER = 32  # numbers: which description, how long it is when it is new, then the first dimension of each tensor
_MAX_TENSORS = _HEADER - 2


class _Described(msgspec.Struct, frozen=True, array_like=True):
    """A tensor but for its first dimension, which is what differs from step to step."""

    name: str
    dtype: str
    rest: tuple[int, ...]
    is_scalar: bool


class PipelineStage:
    """This rank's place in the pipeline. Used by one thread.

    Descriptions of what is sent go along once; after that a message says which one it is, and how many rows.

    Args:
        tensors: the pipeline's ranks, on the device; None for a pipeline of one stage.
        numbers: the same ranks, in host memory.
        device: where received tensors shall be.

    Attributes:
        rank: 0 ≤ rank < size; 0 has the first layers.
        size: stages.
    """

    def __init__(
        self,
        tensors: RankGroup | None = None,
        numbers: RankGroup | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._tensors, self._numbers, self._device = tensors, numbers, device
        self.rank, self.size = (tensors.rank, tensors.size) if tensors else (0, 1)
        self._sent: dict[tuple[_Described, ...], int] = {}
        self._received: list[tuple[_Described, ...]] = []
        self._pending: list[tuple[RankGroup, Pending]] = []

    @property
    def is_first(self) -> bool:
        """Whether tokens enter here."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether tokens are sampled here."""
        return self.rank == self.size - 1

    def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Start to send to the next stage. The tensors must not change before the next ``send``, or ``flush``.

        Raises:
            EngineDeadError: the next stage has gone, or didn't take what was sent before in time.
        """
        import torch

        target, numbers, receiver = *self._groups(), self.rank + 1
        if self.is_last:
            raise EngineError("the last stage of the pipeline has nobody to send to")
        self.flush()
        values = list(tensors.values())
        described = tuple(_describe(name, value) for name, value in tensors.items())
        if len(values) > _MAX_TENSORS:
            raise EngineError(f"a stage hands {len(values)} tensors on; at most {_MAX_TENSORS} fit")
        encoded = b"" if described in self._sent else msgspec.msgpack.encode(described)
        index = self._sent.setdefault(described, len(self._sent))
        rows = [1 if value.dim() == 0 else value.shape[0] for value in values]
        header = torch.zeros(_HEADER, dtype=torch.int64)
        header[: 2 + len(rows)] = torch.tensor([index, len(encoded), *rows])
        self._start(numbers, header, receiver)
        if encoded:
            self._start(numbers, torch.frombuffer(bytearray(encoded), dtype=torch.uint8), receiver)
        for value in values:
            if value.numel():
                self._start(target, value.contiguous(), receiver)

    def recv(self) -> dict[str, torch.Tensor]:
        """What the stage before sends next, on the device.

        Raises:
            EngineDeadError: the stage before has gone, or sent nothing in time.
        """
        import torch

        source, numbers, sender = *self._groups(), self.rank - 1
        if self.is_first:
            raise EngineError("the first stage of the pipeline has nobody to receive from")
        header = torch.empty(_HEADER, dtype=torch.int64)
        numbers.receive(header, sender)
        index, length, *rows = header.tolist()
        if length:
            encoded = torch.empty(length, dtype=torch.uint8)
            numbers.receive(encoded, sender)
            self._received.append(msgspec.msgpack.decode(encoded.numpy().tobytes(), type=tuple[_Described, ...]))
        received = {}
        for each, num_rows in zip(self._received[index], rows, strict=False):
            shape = each.rest if each.is_scalar else (num_rows, *each.rest)
            value = torch.empty(shape, dtype=getattr(torch, each.dtype), device=self._device)
            if value.numel():
                source.receive(value, sender)
            received[each.name] = value
        return received

    def flush(self) -> None:
        """Wait until what was sent last is on its way: its tensors may change then."""
        pending, self._pending = self._pending, []
        for group, each in pending:
            group.wait(each)

    def _start(self, group: RankGroup, tensor: torch.Tensor, receiver: int) -> None:
        self._pending.append((group, group.send(tensor, receiver)))

    def _groups(self) -> tuple[RankGroup, RankGroup]:
        if self._tensors is None or self._numbers is None:
            raise EngineError("the pipeline has one stage; there is nobody to send to or receive from")
        return self._tensors, self._numbers


def _describe(name: str, value: torch.Tensor) -> _Described:
    dtype = str(value.dtype).removeprefix("torch.")
    return _Described(name, dtype, tuple(value.shape[1:]), value.dim() == 0)
