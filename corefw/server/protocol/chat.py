"""Structs of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from corefw.config.engine_config import ServerConfig
from corefw.errors import RequestError
from corefw.frontend.chat_messages import check_template_ends
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.messages.sampling import ALL_LOGPROBS, MAX_SEED, SamplingParams
from corefw.server.protocol.answers import PromptLogprobsBody, Usage
from corefw.server.protocol.chat_messages import MESSAGES_SCHEMA
from corefw.server.protocol.documented import documented
from corefw.server.protocol.fields import RequestShape
from corefw.server.protocol.generation_fields import (
    HARMLESS_FIELDS,
    UNSUPPORTED_FIELDS,
    GenerationFields,
    check_num_logprobs,
)
from corefw.server.protocol.sampling import sampling_params

__all__ = [
    "CHAT_REQUEST",
    "TEMPLATE_KWARGS_SCHEMA",
    "Chat",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatDelta",
    "ChatLogprobs",
    "ChatMessage",
    "ChatRequest",
    "ChatTokenLogprob",
    "ChatTopLogprob",
    "check_template_kwargs",
]

# The renderer gives these to every template.
_OWN_TEMPLATE_VARIABLES = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
# What ``check_template_kwargs`` accepts.
TEMPLATE_KWARGS_SCHEMA: dict[str, Any] = {"propertyNames": {"not": {"enum": sorted(_OWN_TEMPLATE_VARIABLES)}}}


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """A conversation, and how it is answered."""

    messages: Annotated[Any, documented("The conversation so far.", **MESSAGES_SCHEMA)] = None
    max_completion_tokens: Annotated[
        int | None,
        documented("At most so many output tokens; wins over max_tokens.", minimum=1, maximum=MAX_SEED),
    ] = None
    logprobs: Annotated[bool | None, documented("Answer with the log-probability of each output token.")] = None
    top_logprobs: Annotated[
        int | None,
        documented(
            "And with those of so many most likely ones, up to the server's --max-logprobs; where that has no limit, "
            "any number, and -1 for all.",
            minimum=ALL_LOGPROBS,
        ),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, documented("End the prompt where the assistant begins; true by default.")
    ] = None
    continue_final_message: Annotated[
        bool | None,
        documented(
            "End the prompt with the last message's text, which the answer then continues; it excludes "
            "add_generation_prompt: true."
        ),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        documented("Variables for the model's chat template.", **TEMPLATE_KWARGS_SCHEMA),
    ] = None

    def to_sampling_params(self, defaults: SamplingDefaults, limits: ServerConfig, vocab_size: int) -> SamplingParams:
        """Check the fields and say how tokens are chosen. ``max_completion_tokens`` wins over ``max_tokens``."""
        self.check(limits)
        check_template_kwargs(self.chat_template_kwargs)
        check_template_ends(self.add_generation_prompt, self.continue_final_message)
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            max_tokens = self.max_completion_tokens
            if not 1 <= max_tokens <= MAX_SEED:
                raise RequestError(
                    f"max_completion_tokens must be a whole number in [1, {MAX_SEED}]", param="max_completion_tokens"
                )
        return sampling_params(
            self,
            defaults,
            max_tokens=max_tokens,
            logprobs=self._num_logprobs(limits),
            prompt_logprobs=self.prompt_logprobs,
            vocab_size=vocab_size,
        )

    def _num_logprobs(self, limits: ServerConfig) -> int | None:
        check_num_logprobs("top_logprobs", self.top_logprobs, limits.max_logprobs)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs goes with logprobs: true only", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def check_template_kwargs(values: Mapping[str, Any] | None) -> None:
    """Refuse a ``chat_template_kwargs`` that would replace what the server sets.

    Raises:
        RequestError: it has such a variable.
    """
    taken = sorted(_OWN_TEMPLATE_VARIABLES & (values or {}).keys())
    if taken:
        raise RequestError(
            f"chat_template_kwargs must not have {taken[0]}, which the server itself sets; leave it out",
            param=f"chat_template_kwargs.{taken[0]}",
        )


CHAT_REQUEST = RequestShape(
    struct=ChatRequest,
    neutral={
        **UNSUPPORTED_FIELDS,
        "add_special_tokens": (False,),
        "audio": (),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "include_reasoning": (True,),
        "mm_processor_kwargs": ({},),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": (),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    ignored=HARMLESS_FIELDS | {"parallel_tool_calls"},
    needed=("messages",),
)


class ChatTopLogprob(msgspec.Struct, kw_only=True):
    """One of the most likely tokens at a position. ``bytes`` are the token's true bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, kw_only=True):
    """The chosen token at a position, and the most likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, one entry a token."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """The answer's message."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One whole output."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    extensions: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Chat(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, kw_only=True):
    """What is new in the message."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """News of one output."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    extensions: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream. ``usage`` is left out unless the client asked for usage."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
