"""Proposer: drafts tokens for speculative decoding. The group is reserved: nothing calls a proposer yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

__all__ = ["Proposer", "Rollback"]


class Rollback(StrEnum):
    """What a proposer can take back when the drafts that it counted on are rejected."""

    STATELESS = "stateless"
    """There is nothing to take back: each proposal is made from the request's ids alone."""
    ANY_POSITION = "any position"
    """Its state can return to any earlier position, as paged KV can."""
    NONE = "none"
    """Its state only goes forward, so that a rejected draft costs the request's whole state."""


class Proposer(ABC):
    """Guesses how requests go on (group ``corefw.proposers``). Used in a worker, by one thread.

    Attributes:
        name: the plugin's name.
        rollback: what can be taken back when drafts are rejected.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    rollback: ClassVar[Rollback] = Rollback.STATELESS

    @abstractmethod
    def propose(
        self, request_ids: Sequence[str], token_ids: Sequence[Sequence[int]], num_tokens: int
    ) -> Sequence[Sequence[int]]:
        """Draft tokens.

        Args:
            request_ids: of the step's requests.
            token_ids: by request, prompt and output so far; only to be read.
            num_tokens: drafts a request at most.

        Returns:
            by request its drafts, perhaps none.
        """

    def roll_back(self, request_id: str, num_tokens: int) -> None:
        """Forget what goes beyond the first ``num_tokens`` tokens; called only for ``Rollback.ANY_POSITION``."""
        del request_id, num_tokens

    def forget(self, request_id: str) -> None:
        """The request ended, or gave its place up: its state may go. Unknown ids are ignored."""
        del request_id
