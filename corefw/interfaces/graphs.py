"""GraphCapture: records what a device is told to do, so that it can be told again in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

__all__ = ["CaptureRefused", "GraphCapture", "Recording"]


class CaptureRefused(Exception):  # noqa: N818 - says what it is
    """What was done can't be recorded; the message is one sentence why. Such steps are then computed as ever."""


class Recording(ABC):
    """Work that was recorded, in one piece or several.

    Attributes:
        outputs: what a replay fills, in the order in which ``GraphCapture.end`` got them; maybe other tensors, with the
            same shapes.
        num_bytes: memory that is held for it, over that of recordings made before it.
    """

    outputs: tuple[torch.Tensor, ...]
    num_bytes: int

    @abstractmethod
    def replay(self, piece: int = 0) -> None:
        """Do one piece of the work again, with what its tensors hold now: the same addresses, shapes and numbers."""

    def times_ms(self, piece: int = 0) -> Sequence[tuple[str, float]]:
        """Do it with a clock: each kernel's name and time, in order. Default: nothing is done, and nothing is told."""
        del piece
        return ()


class GraphCapture(ABC):
    """A device's recorder. One recording at a time, by one thread. See ``DeviceRuntime.graph_capture``.

    Whether the work is also done while it is recorded is up to the device: what is recorded can be done several times
    over, and the first results that count are those of a replay. Recordings of one capture are never replayed at the
    same time, and outputs are read before the next replay; so they may share memory.

    Attributes:
        name: of whoever supplies it, for the report.
        is_cheap: a recording takes about as long as the work, and little memory: it is made when it is first needed,
            for each size alone. Else recordings are made at start, for some sizes, and batches are padded.
        default_mode: the ``--graph-mode`` that suits the device.
    """

    name: ClassVar[str]
    is_cheap: ClassVar[bool] = False
    default_mode: ClassVar[str] = "full_and_piecewise"

    @abstractmethod
    def begin(self) -> None:
        """Record from here on."""

    @abstractmethod
    def pause(self, seen: Sequence[torch.Tensor]) -> None:
        """A piece ends. What is done until ``resume`` isn't recorded, and reads those tensors where they are."""

    @abstractmethod
    def resume(self) -> None:
        """The next piece begins."""

    @abstractmethod
    def end(self, outputs: Sequence[torch.Tensor]) -> Recording:
        """The work is done.

        Args:
            outputs: what of it is read afterwards.

        Raises:
            CaptureRefused: it can't be replayed as it was. Nothing is recorded any more then.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Something failed on the way: record no more, keep nothing. Harmless when nothing is recorded."""

    def reserve_bytes(self, step_bytes: int, num_recordings: int) -> int:
        """Memory to set aside for recordings before the KV cache is sized; none is made beyond that.

        Args:
            step_bytes: what the largest step to record takes while it is computed.
            num_recordings: how many there may be.
        """
        return step_bytes + num_recordings * 2**20
