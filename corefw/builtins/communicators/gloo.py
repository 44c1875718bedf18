"""gloo: collectives over TCP between tensors in host memory, from PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.interfaces.communicator import Communicator, CommunicatorGroup, Pending

if TYPE_CHECKING:
    import torch

__all__ = ["GlooCommunicator"]

_TAG = 0  # messages between two members keep their order


class GlooCommunicator(Communicator):
    """A process group of its own; ``torch.distributed``'s default one belongs to the user's script."""

    name: ClassVar[str] = "gloo"

    @classmethod
    def unavailable_reason(cls, device_type: str) -> str | None:
        if device_type != "cpu":
            return f"it moves tensors in host memory, not those of {device_type} devices"
        return None

    def __init__(self, group: CommunicatorGroup) -> None:
        from torch import distributed

        self._size = group.size
        gloo: Any = distributed.ProcessGroupGloo
        # The default device is the one that the host's name resolves to, which may be none that works.
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=group.host)]
        options._timeout = timedelta(seconds=group.timeout_s)
        options._threads = 2
        self._group = gloo(group.store, group.rank, group.size, options)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.contiguous()
        self._group.allreduce([whole]).wait()
        return whole

    def all_gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        whole = tensor.contiguous()
        gathered = [whole.new_empty(whole.shape) for _ in range(self._size)]
        self._group.allgather([gathered], [whole]).wait()
        return gathered

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        self._group.broadcast(tensor, root=source).wait()

    def send(self, tensor: torch.Tensor, receiver: int) -> Pending:
        work: Pending = self._group.send([tensor.contiguous()], receiver, _TAG)
        return work

    def receive(self, tensor: torch.Tensor, sender: int) -> None:
        self._group.recv([tensor], sender, _TAG).wait()

    def close(self) -> None:
        self._group = None
