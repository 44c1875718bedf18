"""What the front end sends to the engine core."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from corefw.messages.arrays import Array
from corefw.messages.sampling import SamplingParams

__all__ = ["PLACEHOLDER_ID", "EmbeddingSpan", "EngineCoreRequest", "PlainDict", "spans_within"]

# Stands in a prompt's ids where an embedding stands: an id of every vocabulary. Only the spans tell it from a token.
PLACEHOLDER_ID = 0

# Plain msgpack data: None, bool, int, float, str, bytes, and lists and string-keyed dicts of them.
PlainDict = dict[str, Any]


class EmbeddingSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors that positions of a prompt enter the first layer with, in place of what the model has for token ids.

    Attributes:
        offset: position of the first one.
        values: float32 [N, E], N at least 1, E the width of the model's first layer, all finite in the model's dtype.
    """

    offset: int
    values: Array

    @property
    def stop(self) -> int:
        """The position behind the last one."""
        return self.offset + self.values.shape[0]


def spans_within(spans: Sequence[EmbeddingSpan], start: int, stop: int) -> Iterator[tuple[EmbeddingSpan, int, int]]:
    """The spans that reach into positions start to stop, each with the first of these and the one behind the last.

    Args:
        spans: by rising offset, without overlap.
        start, stop: positions of the prompt.
    """
    for index in range(bisect_right(spans, start, key=lambda span: span.stop), len(spans)):
        first, last = max(spans[index].offset, start), min(spans[index].stop, stop)
        if first >= last:
            return
        yield spans[index], first, last


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to continue. With its outputs so far it can be resumed at any position, by anybody.

    Attributes:
        request_id: unique within the engine; made by the front end, never by the client.
        prompt_ids: token ids of the prompt, at least one; ``PLACEHOLDER_ID`` where an embedding stands.
        params: n is 1, ``seed`` and ``max_tokens`` are set; ``max_tokens`` counts ``prior_output_ids`` too.
        prior_output_ids: tokens produced before (by an engine that died or gave the request away). They count as
            output: for positions of the randomness, limits, penalties and usage. They are not sent out again.
        eos_ids: the model's own end tokens; they end the output unless ``params.ignore_eos``.
        arrival_s: ``time.time()`` at the front end.
        priority: smaller is sooner; ties by arrival.
        cache_salt: separates this request's prefix-cache entries from those of other salts.
        extra: plain data for plugins; travels to the worker with the request.
        prompt_embeds: embeddings at positions of the prompt, by rising offset, without overlap.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    prior_output_ids: list[int] = []
    eos_ids: tuple[int, ...] = ()
    arrival_s: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    extra: PlainDict = {}
    prompt_embeds: tuple[EmbeddingSpan, ...] = ()
