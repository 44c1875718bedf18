"""The ranks of one group as the worker uses them: whatever fails names the ranks, the axis and the operation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from corefw.errors import CorefwError, EngineDeadError, EngineError, EngineStartError

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.communicator import Communicator, CommunicatorGroup, Pending

__all__ = ["PlainGroup", "RankGroup"]

_ALMOST = 0.9  # of the time limit: an operation that failed later than that has waited for somebody


class RankGroup:
    """A communicator, watched. Used by one thread.

    Args:
        communicator: what moves the tensors.
        group: who talks to whom.

    Raises:
        EngineStartError: the others didn't come.

    Attributes:
        rank: this process's place among the members.
        size: members.
    """

    def __init__(self, communicator: type[Communicator], group: CommunicatorGroup) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size
        with self._watching("meeting", EngineStartError):
            self._communicator = communicator(group)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum, in whatever order the communicator likes; may work in place."""
        with self._watching("all_reduce"):
            return self._communicator.all_reduce(tensor)

    def ordered_all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum in the order of ranks, so that it doesn't depend on where in the tensor an element stands."""
        if self.size == 2:
            return self.all_reduce(tensor)  # of two there is one order
        parts = self._gather(tensor)
        total = parts[0].float() if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4 else parts[0]
        for part in parts[1:]:
            total = total + part
        return total.to(tensor.dtype)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every member's tensor, joined along the last dimension."""
        import torch

        return torch.cat(list(self._gather(tensor)), dim=-1)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Fill the tensor with that of the member ``source``."""
        with self._watching("broadcast"):
            self._communicator.broadcast(tensor, source)

    def send(self, tensor: torch.Tensor, receiver: int) -> Pending:
        """Start to send to a member."""
        with self._watching("send"):
            return self._communicator.send(tensor, receiver)

    def wait(self, pending: Pending) -> None:
        """Wait for what ``send`` started."""
        with self._watching("send"):
            pending.wait()

    def receive(self, tensor: torch.Tensor, sender: int) -> None:
        """Fill the tensor with what a member sends next."""
        with self._watching("receive"):
            self._communicator.receive(tensor, sender)

    def close(self) -> None:
        """May be called twice."""
        self._communicator.close()

    def _gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        with self._watching("all_gather"):
            return self._communicator.all_gather(tensor)

    @contextlib.contextmanager
    def _watching(self, operation: str, kind: type[EngineError] = EngineDeadError) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        except CorefwError:
            raise
        except Exception as error:  # the border to the communicator, which may raise anything
            waited_s = time.monotonic() - begin
            raise kind(self._told(operation, error, waited_s)) from error

    def _told(self, operation: str, error: Exception, waited_s: float) -> str:
        group = self._group
        ranks = ", ".join(map(str, group.ranks))
        limit_s = group.timeout_s
        late = waited_s >= limit_s * _ALMOST
        guess = f"one of them didn't answer for {limit_s:g} s" if late else "one of them has gone"
        cause = str(error).partition("\n")[0][:300] or type(error).__name__
        return (
            f"rank {group.ranks[group.rank]}: {operation} of the {group.axis} ranks {ranks} failed "
            f"after {waited_s:.1f} s: {guess} ({cause})"
        )


class PlainGroup:
    """Plain data among ranks, through host memory.

    Args:
        group: the ranks, in host memory; None for a rank that is alone.
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group

    def barrier(self) -> None:
        """Return when every rank has called."""
        self.all_gather_object(None)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's value, in their order. Values are plain data; what arrives is what msgpack makes of them."""
        encoded = msgspec.msgpack.encode(value)
        if self._group is None:
            return [msgspec.msgpack.decode(encoded)]
        import torch

        group = self._group
        length = torch.tensor([len(encoded)])
        longest = int(group.all_gather(length).max())
        padded = torch.zeros(8 + longest, dtype=torch.uint8)
        padded[:8] = length.view(torch.uint8)
        padded[8 : 8 + len(encoded)] = _bytes_tensor(encoded)
        rows = group.all_gather(padded).view(group.size, -1)
        return [msgspec.msgpack.decode(_bytes_of(row[8 : 8 + _length_of(row)])) for row in rows]

    def is_same(self, digest: bytes) -> bool:
        """Whether every rank has the same; of 8 bytes at least, the first 8 count. One exchange, for every step."""
        if self._group is None:
            return True
        numbers = self._group.all_gather(_bytes_tensor(digest[:8]))
        return bool((numbers.view(-1, 8) == numbers[:8]).all())

    def broadcast_object(self, value: Any = None, source: int = 0) -> Any:
        """The value of the member ``source``; the others' don't count."""
        if self._group is None:
            return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        import torch

        group = self._group
        encoded = msgspec.msgpack.encode(value) if group.rank == source else b""
        length = torch.tensor([len(encoded)])
        group.broadcast(length, source)
        content = _bytes_tensor(encoded) if group.rank == source else torch.empty(int(length), dtype=torch.uint8)
        group.broadcast(content, source)
        return msgspec.msgpack.decode(_bytes_of(content))

    def close(self) -> None:
        """May be called twice."""
        if self._group is not None:
            self._group.close()


def _bytes_tensor(data: bytes) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def _length_of(row: torch.Tensor) -> int:
    return int.from_bytes(_bytes_of(row[:8]), "little")
