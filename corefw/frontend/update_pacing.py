"""Which updates go out, and what they carry."""

from __future__ import annotations

import dataclasses

from corefw.frontend.output_processor import GenerationUpdate
from corefw.messages.plain import joined_news
from corefw.messages.sampling import RequestOutputKind

__all__ = ["UpdatePacing", "joined"]


class UpdatePacing:
    """Of one output. The first news go out at once, then every so many tokens, and the end.

    Args:
        kind: what an update carries.
        interval: tokens between two updates.
    """

    def __init__(self, kind: RequestOutputKind, interval: int = 1) -> None:
        self._kind = kind
        self._interval = interval
        self._kept: GenerationUpdate | None = None
        self._num_new_tokens = 0
        self._has_begun = False

    def take(self, update: GenerationUpdate) -> GenerationUpdate | None:
        """The update to give out now that this one has come."""
        if self._kind is RequestOutputKind.DELTA and self._interval == 1:
            return update
        self._kept = update if self._kept is None else joined(self._kept, update)
        self._num_new_tokens += len(update.token_ids)
        if not self._is_due(update):
            return None
        due, self._has_begun, self._num_new_tokens = self._kept, True, 0
        if self._kind is RequestOutputKind.DELTA:
            self._kept = None
        return due

    def _is_due(self, update: GenerationUpdate) -> bool:
        if update.finish_reason is not None:
            return True
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return False
        return not self._has_begun or self._num_new_tokens >= self._interval


def joined(first: GenerationUpdate, second: GenerationUpdate) -> GenerationUpdate:
    """Two updates of an output that follow each other, as one."""
    has_logprobs = first.logprobs is not None or second.logprobs is not None
    return dataclasses.replace(
        second,
        text=first.text + second.text,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=[*(first.logprobs or ()), *(second.logprobs or ())] if has_logprobs else None,
        extra=joined_news(first.extra, second.extra),
        prompt_logprobs=first.prompt_logprobs if second.prompt_logprobs is None else second.prompt_logprobs,
    )
