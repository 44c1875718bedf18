"""A pipeline stage's neighbours: one message comes in and one goes out in each step, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from corefw.errors import EngineDeadError, EngineError

if TYPE_CHECKING:
    from corefw.runtime.model_runner.execution import StageTensors

__all__ = ["StageLink", "StageTransport"]

_FAILED = "failed"


class StageTransport(Protocol):
    """What moves tensors: see ``corefw.runtime.distributed.pipeline_stage.PipelineStage``."""

    @property
    def is_first(self) -> bool: ...
    @property
    def is_last(self) -> bool: ...
    def send(self, tensors: Mapping[str, torch.Tensor]) -> None: ...
    def recv(self) -> dict[str, torch.Tensor]: ...


class StageLink:
    """Keeps stages in step: one that fails says so to the next, and takes what the one before it sent.

    Args:
        transport: moves the tensors.
    """

    def __init__(self, transport: StageTransport) -> None:
        self._transport = transport
        self._is_owed = self._owes = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block of a step that computes something."""
        self._is_owed, self._owes = not self._transport.is_first, not self._transport.is_last
        try:
            yield
        except EngineDeadError:  # there is nobody to be in step with
            raise
        except Exception:
            if self._is_owed:
                self._transport.recv()
            if self._owes:
                self._transport.send({_FAILED: torch.zeros(1)})
            raise

    def receive(self) -> StageTensors | None:
        """What the stage before gives; None at the first one.

        Raises:
            EngineError: it failed in this step.
        """
        if not self._is_owed:
            return None
        self._is_owed = False
        received = self._transport.recv()
        if _FAILED in received:
            raise EngineError("the pipeline stage before this one failed in the same step")
        return received

    def give(self, tensors: StageTensors | None) -> None:
        """Hand on to the next stage; the last one has nothing."""
        if tensors is not None:
            self._owes = False
            self._transport.send(tensors)
