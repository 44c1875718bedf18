"""Counting a request's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.server.protocol.answers import PromptTokensDetails, Usage

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate

__all__ = ["UsageTally"]


class UsageTally:
    """Adds up the news of a request. A prompt counts once, however many outputs it has.

    Args:
        prompts: their token ids.
        n: outputs a prompt.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], n: int) -> None:
        self._n = n
        self._num_prompt = sum(map(len, prompts))
        self._num_completion = 0
        self._num_cached: dict[int, int] = {}

    def add(self, choice: int, update: GenerationUpdate) -> None:
        """Count the news of a choice."""
        self._num_completion += len(update.token_ids)
        if choice % self._n == 0 and update.num_cached_tokens:
            # Later outputs of a prompt find what its first one has just computed; that was no saving for the client.
            self._num_cached[choice] = update.num_cached_tokens

    def usage(self) -> Usage:
        """What was counted so far."""
        return Usage(
            prompt_tokens=self._num_prompt,
            completion_tokens=self._num_completion,
            total_tokens=self._num_prompt + self._num_completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached.values())),
        )
