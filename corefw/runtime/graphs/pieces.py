"""Steps that are recorded in pieces: attention stands between them and is computed anew, with the batch's own shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from corefw.interfaces.graphs import GraphCapture
    from corefw.models.layers.forward_context import Attend, Splitter

__all__ = ["Boundary", "Pieces"]

_Take = Callable[[torch.Tensor], torch.Tensor]


class Boundary:
    """Attention of one layer, with the tensors that the pieces before and after it have in common with it.

    Args:
        attend: the layer's attention.
        seen: query, key and value of all rows, at the places where the piece before writes them.
        given: where the piece after reads the result.
    """

    __slots__ = ("_attend", "_given", "_seen")

    def __init__(self, attend: Attend, seen: tuple[torch.Tensor, ...], given: torch.Tensor) -> None:
        self._attend = attend
        self._seen = seen
        self._given = given

    def compute(self, num_tokens: int) -> None:
        """Attention of the rows that are tokens; what padding reads stays what it was."""
        query, key, value = (tensor[:num_tokens] for tensor in self._seen)
        self._given[:num_tokens].copy_(self._attend(query, key, value))


class Pieces:
    """Results of attention, by shape of a row: all recordings read them at the same places, one after the other."""

    def __init__(self) -> None:
        self._given: dict[tuple[object, ...], torch.Tensor] = {}

    def splitter(self, capture: GraphCapture, boundaries: list[Boundary]) -> Splitter:
        """What attention layers call instead while a step is recorded; each call adds a boundary."""

        def split(attend: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            capture.pause((query, key, value))
            given = self._place(query)
            boundaries.append(Boundary(attend, (query, key, value), given))
            capture.resume()
            return given

        return split

    def _place(self, query: torch.Tensor) -> torch.Tensor:
        key = (tuple(query.shape[1:]), query.dtype, query.device)
        held = self._given.get(key)
        if held is None or len(held) < len(query):  # recordings that read the old one keep it
            held = self._given[key] = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        return held[: len(query)]
