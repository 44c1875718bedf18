"""Hooks inside the model: points where a plugin looks at tensors, or changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

from corefw.interfaces.hooks.lifecycle import WorkerObserver, WorkerStep
from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

    from corefw.config.engine_config import EngineConfig

__all__ = ["GRAPH_KINDS", "ModelTaps", "corefw_model_taps"]

_C = TypeVar("_C")

GRAPH_KINDS = frozenset({"full", "piecewise"})


class ModelTaps(WorkerObserver[_C]):
    """Is shown tensors at named points of the model. A worker's observer as well, with its contexts and answers.

    Points of the decoders that corefw ships, with T rows, one a token, unless said otherwise:

    - ``layers.N.residual``: the residual stream after layer N, [T, E];
    - ``layers.N.qkv``: query, key and value of layer N as attention gets them, three tensors of this rank's heads;
    - ``lm_head.input``: hidden states that become logits, [S, E], one row a request that gets a token;
    - ``logits``: [S, V].

    Attributes:
        points: names of the wanted points, read once.
        breaks: kinds of captured graphs that can't contain these points: ``full``, ``piecewise``. Where ``show`` only
            runs operations on the tensors, none.
    """

    points: Collection[str] = ()
    breaks: ClassVar[frozenset[str]] = GRAPH_KINDS

    def show(
        self, step: WorkerStep[_C], point: str, *tensors: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
        """Look at a point's tensors; called in the forward pass, never for warm-up or for scoring a prompt.

        Args:
            step: which rows are whose.
            point: the point's name.
            tensors: what is there; never written to in place.

        Returns:
            None leaves everything as it is; else tensors of the same shapes and dtypes that take their place. Rows that
            are equal to those shown go on bit for bit. One that raises, or returns something else, changes nothing.
        """
        del step, point, tensors
        return None


@hookspec
def corefw_model_taps(config: EngineConfig) -> ModelTaps[object] | None:
    """Look into the model, or change what it computes.

    Called once in each worker, before the model is built: the points are built in, and cost nothing where nobody wants
    them. A point that the model doesn't have stops the start.

    Args:
        config: as resolved; ``model_info`` knows the number of layers.

    Returns:
        the points and who is shown them, or None.
    """
