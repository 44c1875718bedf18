"""LogitsProcessor: changes logits at a fixed place in the sampling chain, with a state of its own for each request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import PlainDict
    from corefw.messages.sampling import SamplingParams

__all__ = ["LogitsProcessor", "SampledRequest"]

_StateT = TypeVar("_StateT")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledRequest:
    """A request as it enters the worker: new, or resumed with outputs.

    Attributes:
        request_id: the engine's own id, unique while the request lives.
        prompt_ids: the whole prompt; -1 at positions that were given as embeddings.
        output_ids: output tokens so far; empty for a new request.
        params: sampling parameters; what clients say to processors is in ``params.extra_args``.
        extra: plain data of plugins.
    """

    request_id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    params: SamplingParams
    extra: PlainDict


class LogitsProcessor(ABC, Generic[_StateT]):
    """Changes logits (group ``corefw.logits_processors``); chosen by name with ``--logits-processors``.

    One object a worker, used by one thread. All that it must remember of a request is in that request's state. A
    request that is preempted or moved comes back through ``state`` with its outputs, so an equal output needs a state
    that is a function of (prompt ids, output ids, parameters).

    An exception in either method ends the request that it was called for, with an error; the others go on.

    Attributes:
        changes_argmax: whether the most likely token may become another one. Such a processor runs before the
            penalties, on the model's logits. Another one runs after temperature, and not at all for greedy requests.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    changes_argmax: ClassVar[bool] = True

    def __init__(self, config: EngineConfig, vocab_size: int) -> None:
        """``vocab_size`` is the length of the rows that ``apply`` gets: ids that can be decoded."""
        del config, vocab_size

    @abstractmethod
    def state(self, request: SampledRequest) -> _StateT | None:
        """The state of a request that enters; None when the request is none of this processor's business."""

    @abstractmethod
    def apply(self, state: _StateT, logits_V: torch.Tensor, output_ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Change the logits of the request's next token.

        Called exactly once for each token that is sampled, never for tokens that are only computed.

        Args:
            state: the request's, from ``state``; may be changed.
            logits_V: [V], may be changed in place. float32 of the model; after temperature float64, the largest one 0.
            output_ids: all output tokens so far, those before a resumption included; read-only.

        Returns:
            [V], ``logits_V`` itself or another one of its shape.
        """
