"""Structs of ``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from corefw.config.engine_config import ServerConfig
from corefw.errors import RequestError
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.messages.sampling import ALL_LOGPROBS, SamplingParams
from corefw.server.protocol.answers import PromptLogprobsBody, Usage
from corefw.server.protocol.documented import documented, or_null
from corefw.server.protocol.fields import RequestShape
from corefw.server.protocol.generation_fields import (
    HARMLESS_FIELDS,
    UNSUPPORTED_FIELDS,
    GenerationFields,
    check_num_logprobs,
)
from corefw.server.protocol.prompt_embeds import PROMPT_EMBEDS_SCHEMAS
from corefw.server.protocol.prompts import PROMPT_SCHEMAS
from corefw.server.protocol.sampling import sampling_params

__all__ = [
    "COMPLETION_REQUEST",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionLogprobs",
    "CompletionRequest",
]

# What the API says where a request doesn't.
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """Prompts, and how they are continued."""

    prompt: Annotated[Any, documented("A text, token ids, or a list of either.", anyOf=or_null(*PROMPT_SCHEMAS))] = None
    prompt_embeds: Annotated[
        Any,
        documented(
            "Prompts as embeddings: base64 of a .npy, .safetensors or torch.save file with one tensor [positions, "
            "width], where the server takes them (--enable-prompt-embeds). Their choices come before those of prompt.",
            anyOf=or_null(*PROMPT_EMBEDS_SCHEMAS),
        ),
    ] = None
    data: Annotated[
        Any,
        documented(
            "In place of prompt: what the server's IO processor (--io-processor-plugin) makes prompts of. The answer's "
            "data are what it makes of their outputs, and there are no choices.",
            type=["object", "array", "string", "number", "boolean", "null"],
        ),
    ] = None
    logprobs: Annotated[
        int | None,
        documented(
            "Log-probabilities of the output's tokens and of so many most likely ones, at most the server's "
            "--max-logprobs; -1, for all, where that has no limit.",
            minimum=ALL_LOGPROBS,
        ),
    ] = None
    best_of: Annotated[int | None, documented("Not supported; the value of n is accepted.", minimum=1)] = None
    echo: Annotated[bool | None, documented("The text begins with the prompt.")] = None

    def to_sampling_params(self, defaults: SamplingDefaults, limits: ServerConfig, vocab_size: int) -> SamplingParams:
        """Check the fields and say how tokens are chosen."""
        self.check(limits)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of other than n is not supported by this server; leave it out", param="best_of")
        check_num_logprobs("logprobs", self.logprobs, limits.max_logprobs)
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return sampling_params(
            self,
            defaults,
            max_tokens=max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self._num_prompt_logprobs(max_tokens),
            vocab_size=vocab_size,
        )

    def _num_prompt_logprobs(self, max_tokens: int) -> int | None:
        """What is asked for the prompt, and what its echo needs: as many as the output's tokens have."""
        wanted = [count for count in (self.prompt_logprobs, self.logprobs if self.echo else None) if count is not None]
        if not wanted:
            return 0 if self.echo and max_tokens == 0 else None
        return ALL_LOGPROBS if ALL_LOGPROBS in wanted else max(wanted)


COMPLETION_REQUEST = RequestShape(
    struct=CompletionRequest,
    neutral={**UNSUPPORTED_FIELDS, "add_special_tokens": (True,), "suffix": ("",)},
    ignored=HARMLESS_FIELDS,
    needed=("prompt", "prompt_embeds", "data"),
)


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, one entry a token in each list; an echoed prompt's first token has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One output, whole or the news of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    extensions: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    data: Any | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a stream. ``usage`` is left out unless the client asked for usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"
