"""OpProvider: kernels for named ops. Chosen and bound once, when a layer is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from corefw.interfaces.graphs import GraphCapture

__all__ = ["OpProvider", "OpRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRequest:
    """For what an op is bound.

    Attributes:
        op: its name in the registry.
        device_type: torch's device type.
        dtype: name of the activations' dtype.
        batch_invariant: results must not depend on the batch (always so in float32).
        shape: sizes fixed at build (``in_features``, ``out_features`` …).
        layout: of the weight of ``quantized_linear`` and ``quantized_embedding``: block types and their rows, from top
            to bottom, as in ``Q4_K:1024+Q6_K:256``, or ``W8A8:1024`` (see ``corefw.models.ops.block_layout``); without
            rows, and without ``shape``, where only the type is asked for. Those kernels get nothing but what
            ``prepare_weight`` made; a provider with both makes the same for both.
    """

    op: str
    device_type: str
    dtype: str
    batch_invariant: bool
    shape: Mapping[str, int]
    layout: str = ""


class OpProvider(ABC):
    """Supplies kernels (group ``corefw.op_providers``). Asked in order of ``rank``, largest first.

    A kernel's parameters must be those of the op: same names are called by keyword; same order and count but other
    names by position; anything else is refused when it is bound.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    rank: ClassVar[int] = 50

    @abstractmethod
    def supports(self, request: OpRequest) -> str | None:
        """None when there is a kernel for this, else why not."""

    @abstractmethod
    def kernel(self, request: OpRequest) -> Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]:
        """The kernel, after ``supports`` said yes."""

    def prepare_weight(self, request: OpRequest, weight: torch.Tensor) -> torch.Tensor:
        """A loaded weight in the layout that the kernel likes best. Called once a layer, after all weights are loaded.

        It isn't called where an earlier start's result is used: see ``prepared_form``.

        Args:
            request: for which this provider's kernel was bound.
            weight: as the op has it; the layer forgets it when another tensor is returned. It must stay as it is: an
                embedding may go on using it.

        Returns:
            what the layer will hand to the kernel from now on. The kernel must go on taking plain weights, too: a model
            may keep those that it reads elsewhere.
        """
        del request
        return weight

    def prepared_form(self) -> str | None:
        """What ``prepare_weight`` makes here, by a name that changes whenever its result for the same weight does.

        Prepared weights are then kept on disk for later starts, also of other processes, which get them instead of
        calling ``prepare_weight``; so they must be plain tensors. Default: they aren't kept.
        """
        return None

    def embeds_prepared(self, request: OpRequest) -> bool:
        """Whether its ``embedding`` also reads what ``prepare_weight`` makes of this ``linear``'s weight.

        A model whose embedding is its output head then holds that weight once. Default: it doesn't.
        """
        del request
        return False

    def widens(self, request: OpRequest) -> bool:
        """Whether its kernel for a weight in blocks widens all of it in every call.

        That takes more time than a product with plain weights, so it is done only where memory is to be saved. Default:
        it doesn't.
        """
        del request
        return False

    def graph_capture(self) -> GraphCapture | None:
        """What records steps made of this provider's kernels, for platforms that adopt it. Default: nothing does."""
        return None
