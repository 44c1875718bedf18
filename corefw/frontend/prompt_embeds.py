"""Prompts given as embeddings: read, checked, and put at their positions."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from corefw.errors import RequestError
from corefw.frontend.embeds_formats import FORMATS, UnreadableError, read_floats
from corefw.messages.arrays import Array
from corefw.messages.request import PLACEHOLDER_ID, EmbeddingSpan

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.sampling import SamplingParams

__all__ = ["EmbeddedPrompt", "PromptEmbeds", "check_embeds_params", "without_first"]

# The largest finite numbers; what is beyond would become infinite in the model's arithmetic.
_LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
# Each further output of a prompt takes a copy of its embeddings to the engine.
MAX_COPIED_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class EmbeddedPrompt:
    """A prompt with embeddings. ``ids`` has the placeholder where one stands."""

    ids: list[int]
    spans: tuple[EmbeddingSpan, ...]


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """What a model takes as embeddings.

    Attributes:
        is_enabled: whether the operator allows them.
        width: elements of one.
        largest: bound on the size of an element.
    """

    is_enabled: bool
    width: int
    largest: float

    @classmethod
    def of(cls, config: EngineConfig) -> PromptEmbeds:
        """What the model of a configuration takes."""
        width = config.model_info.hf_config.get("hidden_size") or 0
        return cls(config.model.enable_prompt_embeds, int(width), _LARGEST[config.dtype])

    def decode(self, encoded: str, *, param: str) -> EmbeddedPrompt:
        """A whole prompt from a file's bytes in base64.

        Raises:
            RequestError: not allowed here, not readable, or not embeddings of this model.
        """
        self._check_enabled(param)
        try:
            values = read_floats(_decoded(encoded))
        except UnreadableError as error:
            raise RequestError(f"{param} must be base64 of {FORMATS}: {error}", param=param) from None
        return self._whole(self._checked(values, param))

    def whole(self, values: object, *, param: str = "prompt_embeds") -> EmbeddedPrompt:
        """A whole prompt from an array or a tensor [positions, width].

        Raises:
            RequestError: see ``decode``.
        """
        self._check_enabled(param)
        return self._whole(self._checked(_array(values, param), param))

    def placed(
        self, ids: Sequence[int], values: Mapping[int, object], *, param: str = "prompt_embeds"
    ) -> EmbeddedPrompt:
        """Token ids, with embeddings in the place of some.

        Args:
            ids: of the whole prompt; those at embedded positions have no meaning.
            values: by position of the first one, arrays or tensors [positions, width].
            param: the field, for errors.

        Raises:
            RequestError: see ``decode``; or a position is outside the prompt or taken twice.
        """
        self._check_enabled(param)
        if not values or any(type(offset) is not int for offset in values):
            raise RequestError(f"{param} must be by position, a whole number, at least one", param=param)
        kept, spans, free_from = list(ids), [], 0
        for offset in sorted(values):
            name = f"{param}[{offset}]"
            span = EmbeddingSpan(offset=offset, values=self._checked(_array(values[offset], name), name))
            if offset < free_from or span.stop > len(kept):
                raise RequestError(
                    f"{name} takes positions {offset} to {span.stop - 1}; they must lie within the prompt of "
                    f"{len(kept)} tokens and behind position {free_from - 1}",
                    param=name,
                )
            kept[offset : span.stop] = [PLACEHOLDER_ID] * (span.stop - offset)
            spans.append(span)
            free_from = span.stop
        return EmbeddedPrompt(kept, tuple(spans))

    def _whole(self, values: Array) -> EmbeddedPrompt:
        return EmbeddedPrompt([PLACEHOLDER_ID] * values.shape[0], (EmbeddingSpan(offset=0, values=values),))

    def _check_enabled(self, param: str) -> None:
        if not self.is_enabled:
            raise RequestError(
                f"{param} is switched off; start the engine with --enable-prompt-embeds, or send text or token ids",
                param=param,
                code="unsupported_parameter",
            )

    def _checked(self, values: npt.NDArray[np.float32], param: str) -> Array:
        shape = values.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] != self.width:
            shown = list(shape) if len(shape) <= 4 else f"{len(shape)} dimensions"
            raise RequestError(
                f"{param} must be of shape [positions, {self.width}] with at least one position, got {shown}",
                param=param,
            )
        # One comparison finds NaN and infinities, too.
        if not (-self.largest <= values.min() and values.max() <= self.largest):
            raise RequestError(
                f"{param} must be finite in the model's arithmetic, each number at most {self.largest:g} in size; it "
                "has NaN, an infinity or a larger one",
                param=param,
            )
        return Array.from_numpy(values)


def check_embeds_params(params: SamplingParams, spans: Sequence[EmbeddingSpan]) -> None:
    """Refuse what prompts with embeddings can't have.

    Args:
        params: of the prompts.
        spans: of all that are sent together.

    Raises:
        RequestError: log-probabilities of a prompt without ids, or more copies than memory is set aside for.
    """
    if not spans:
        return
    if params.prompt_logprobs is not None:
        raise RequestError(
            "a prompt with embeddings has no token ids at those positions, so there are no log-probabilities of it; "
            "leave out prompt_logprobs (and echo)",
            param="prompt_logprobs",
        )
    copied = (params.n - 1) * sum(len(span.values.data) for span in spans)
    if copied > MAX_COPIED_BYTES:
        raise RequestError(
            f"n={params.n} outputs of these embeddings take {copied} further bytes, at most {MAX_COPIED_BYTES} are "
            "allowed; lower n",
            param="n",
        )


def without_first(spans: Sequence[EmbeddingSpan], num_tokens: int) -> tuple[EmbeddingSpan, ...]:
    """The spans of a prompt that has lost so many tokens at its beginning."""
    if not num_tokens:
        return tuple(spans)
    return tuple(_cut(span, max(0, num_tokens - span.offset), num_tokens) for span in spans if span.stop > num_tokens)


def _cut(span: EmbeddingSpan, num_rows: int, num_tokens: int) -> EmbeddingSpan:
    values = Array.from_numpy(span.values.to_numpy()[num_rows:]) if num_rows else span.values
    return EmbeddingSpan(offset=max(0, span.offset - num_tokens), values=values)


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise UnreadableError("it isn't valid base64") from None


def _array(values: Any, param: str) -> npt.NDArray[np.float32]:
    """float32 of a numpy array or of a tensor, told by its methods: this room doesn't import torch."""
    if hasattr(values, "is_floating_point") and values.is_floating_point():
        values = values.detach().float().cpu().numpy()
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise RequestError(f"{param} must be a numpy array or a tensor of floats [positions, width]", param=param)
    with np.errstate(over="ignore"):  # what is too large is refused with the infinite
        return values.astype(np.float32)
