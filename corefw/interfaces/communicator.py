"""Communicator: moves device tensors among the ranks of one group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

__all__ = ["Communicator", "CommunicatorGroup", "Pending"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicatorGroup:
    """The ranks that talk to one another, as one of them is told.

    Attributes:
        axis: what they have of one another (``tensor``, ``pipeline`` …; ``all`` for every rank), for messages.
        ranks: of the members, in the grid; their order is the group's.
        rank: this process's place among the members, from 0.
        device: where its tensors live.
        store: keys and values that the members share, and nobody else; for their first meeting.
        timeout_s: how long the others may keep this one waiting, at the meeting and in every operation.
        on_one_machine: whether all members run on this machine.
        host: this machine's address, as the other members reach it.
    """

    axis: str
    ranks: tuple[int, ...]
    rank: int
    device: torch.device
    store: Store
    timeout_s: float
    on_one_machine: bool
    host: str = "127.0.0.1"

    @property
    def size(self) -> int:
        """Members."""
        return len(self.ranks)


class Pending(Protocol):
    """An operation that was started."""

    def wait(self) -> object:
        """Return when its tensor may be used again; raises what went wrong."""


class Communicator(ABC):
    """Collective operations of one group (group ``corefw.communicators``), chosen by name or by the device's type.

    Every member makes one, at the same time, and calls the same operations in the same order. Used by one thread. A
    failure is any exception: the group is unusable then, and the caller says which ranks and axis it was.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    can_be_recorded: ClassVar[bool] = False  # whether its operations may be in a step that is recorded and replayed

    @classmethod
    @abstractmethod
    def unavailable_reason(cls, device_type: str) -> str | None:
        """None where it can move tensors of that type of device here, else why not. Cheap; imports no torch."""

    @abstractmethod
    def __init__(self, group: CommunicatorGroup) -> None:
        """Meet the other members. Blocks until all are there, for ``group.timeout_s`` at most."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the members, in any order; every member gets the same bits. May work in place."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Every member's tensor, in their order. All have one shape and dtype."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Fill the tensor, in place, with that of the member ``source``."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, receiver: int) -> Pending:
        """Start to send to a member. The tensor must not change before the result's ``wait`` returned."""

    @abstractmethod
    def receive(self, tensor: torch.Tensor, sender: int) -> None:
        """Fill the tensor, in place, with what the member ``sender`` sends next."""

    @abstractmethod
    def close(self) -> None:
        """Let go what it holds. May be called twice, and after a failure; never waits for the others."""
