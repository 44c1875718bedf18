"""A request's news as the front end gets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from corefw.engine.request import Request
from corefw.messages.outputs import EngineCoreOutput, FinishReason, PositionLogprobs
from corefw.messages.request import PlainDict

__all__ = ["News"]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a step, or an end, brought for a request; the fields are those of ``EngineCoreOutput``."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    extra: PlainDict = field(default_factory=dict)

    def output_of(self, request: Request) -> EngineCoreOutput:
        """The message; the request's first one also tells how much of its prompt was cached."""
        num_cached_tokens = None if request.has_output else request.num_cached_tokens or 0
        request.has_output = True
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_cached_tokens=num_cached_tokens,
            error=self.error,
            extra=self.extra,
        )
