"""A recorder of torch ops for tests: replays them one by one, and fails where a device's recorder would go wrong.

It fails when memory that a recording reads is given up or replaced, when something is allocated while a step is
recorded (results of ops aside: those belong to the recording), and when the host asks for a tensor's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from corefw.interfaces.graphs import CaptureRefused, GraphCapture, Recording
from corefw.interfaces.op_provider import OpProvider, OpRequest

__all__ = ["CheapRecorder", "RecorderOps", "TorchRecorder", "TorchRecording"]

_Call = tuple[Any, Any, Any, list[Any]]  # op, arguments, those by name, results that are the recording's own
_READS_VALUES = ("item", "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")


class _Input:
    """A tensor from outside of a recording: known by its memory, which somebody else has to keep."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._address = tensor.data_ptr()
        self._layout = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def tensor(self) -> torch.Tensor:
        storage = None if self._storage.expired() else torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        assert storage is not None, f"memory that a recording reads was given up: {self._layout}"
        dtype, offset, shape, stride = self._layout
        found = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)
        assert found.data_ptr() == self._address, f"a recorded address has changed: {self._layout}"
        return found


class TorchRecording(Recording):
    """Ops in pieces, with their tensors. What ``outputs`` hold before the first replay is noise."""

    def __init__(self, pieces: list[list[_Call]], outputs: Sequence[torch.Tensor]) -> None:
        self._pieces = pieces
        self.outputs = tuple(outputs)
        made = [leaf for piece in pieces for call in piece for leaf in call[3] if leaf is not None]
        self.num_bytes = sum(
            {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in made}.values()
        )
        for tensor in made:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def replay(self, piece: int = 0) -> None:
        for function, args, kwargs, results in self._pieces[piece]:
            found = function(
                *tree_map_only(_Input, _Input.tensor, args), **tree_map_only(_Input, _Input.tensor, kwargs)
            )
            for old, new in zip(results, tree_leaves(found), strict=True):
                if old is not None and old.data_ptr() != new.data_ptr():
                    assert old.shape == new.shape, f"{function} gave {new.shape}, but {old.shape} when it was recorded"
                    old.copy_(new)


class TorchRecorder(GraphCapture):
    """See the module. Recordings are made at start, as on a device where that takes time.

    Attributes:
        made: every recording, in order.
    """

    name: ClassVar[str] = "torch recorder"

    def __init__(self) -> None:
        self.made: list[TorchRecording] = []
        self._mode: _Mode | None = None

    def begin(self) -> None:
        assert self._mode is None, "a recording is under way"
        self._mode = _Mode()
        self._mode.enter()

    def pause(self, seen: Sequence[torch.Tensor]) -> None:
        del seen  # all tensors stay where they are
        assert self._mode is not None
        self._mode.leave()
        self._mode.pieces.append([])

    def resume(self) -> None:
        assert self._mode is not None
        self._mode.enter()

    def end(self, outputs: Sequence[torch.Tensor]) -> Recording:
        mode, self._mode = self._mode, None
        assert mode is not None
        mode.leave()
        if mode.refusal is not None:
            raise CaptureRefused(mode.refusal)
        self.made.append(TorchRecording(mode.pieces, outputs))
        return self.made[-1]

    def cancel(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.leave()


class CheapRecorder(TorchRecorder):
    """The same, recording when a step is first needed."""

    is_cheap: ClassVar[bool] = True


class RecorderOps(OpProvider):
    """An op provider that supplies a recorder, and no kernels.

    Attributes:
        recorder: what it makes.
        captures: those that were made.
    """

    name: ClassVar[str] = "recorder"
    recorder: ClassVar[type[TorchRecorder]] = TorchRecorder
    captures: ClassVar[list[TorchRecorder]] = []

    def supports(self, request: OpRequest) -> str | None:
        return f"no kernel for {request.op}"

    def kernel(self, request: OpRequest) -> Any:
        raise NotImplementedError

    def graph_capture(self) -> GraphCapture:
        self.captures.append(self.recorder())
        return self.captures[-1]


class _Mode(TorchDispatchMode):
    """Records what ops do, between ``enter`` and ``leave``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pieces: list[list[_Call]] = [[]]
        self.refusal: str | None = None
        self._is_entered = False
        self._own: dict[int, torch.Tensor] = {}

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        self._is_entered = True

    def leave(self) -> None:
        if self._is_entered:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._is_entered = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        name = func._schema.name.partition("::")[2]
        assert given, f"{name} allocates memory while a step is recorded"
        if name in _READS_VALUES:
            self.refusal = f"{name} reads a tensor's values on the host"
        results = func(*args, **kwargs)
        shares = {tensor.untyped_storage().data_ptr() for tensor in given}
        for tensor in tree_leaves(results):
            if _is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in shares:
                self._own[tensor.untyped_storage().data_ptr()] = tensor
        kept_args, kept_kwargs = tree_map_only(torch.Tensor, self._kept, (args, kwargs))
        kept_results = [leaf if _is_tensor(leaf) and self._is_own(leaf) else None for leaf in tree_leaves(results)]
        self.pieces[-1].append((func, kept_args, kept_kwargs, kept_results))
        return results

    def _is_own(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._own

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor | _Input:
        return tensor if self._is_own(tensor) else _Input(tensor)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
