"""Whole results of requests, as offline use gives them back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corefw.frontend.output_processor import GenerationUpdate, TokenLogprob
from corefw.messages.outputs import FinishReason
from corefw.messages.plain import joined_news
from corefw.messages.request import PlainDict

__all__ = ["CompletionOutput", "RequestOutput"]


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of a request's n outputs.

    Attributes:
        index: which.
        text: generated text.
        token_ids: generated ids.
        logprobs: one entry a token, if the parameters ask for them.
        finish_reason: why it ended (``stop``, ``length``).
        stop_reason: the stop string or stop token id that ended it; None for an end token or a limit.
        extensions: by plugin, what its observers said of the output.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    extensions: PlainDict = field(default_factory=dict)

    def add(self, update: GenerationUpdate) -> None:
        """Append an update's news."""
        self.text += update.text
        self.token_ids += update.token_ids
        if update.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += update.logprobs
        self.finish_reason = update.finish_reason
        self.stop_reason = update.stop_reason
        self.extensions = joined_news(self.extensions, update.extra)


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """What became of one prompt.

    Attributes:
        request_id: counts a model's requests, as text.
        prompt: its text; None where ids or messages were given.
        prompt_token_ids: what the model saw.
        outputs: n of them, by index.
        finished: whether all have ended.
        num_cached_tokens: prompt tokens taken from the prefix cache, by the first output.
        prompt_logprobs: one entry a prompt token, if the parameters ask for them; the first token has none.
        data: for a prompt of ``data``, what the IO processor made of the outputs of all its prompts.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    data: Any = None

    def add(self, update: GenerationUpdate) -> None:
        """Append an update's news to its output."""
        self.outputs[update.index].add(update)
        if update.index == 0:
            self.num_cached_tokens = update.num_cached_tokens
            if update.prompt_logprobs is not None:
                self.prompt_logprobs = update.prompt_logprobs
        self.finished = all(output.finish_reason is not None for output in self.outputs)
