"""One output sequence on its way back: ids to text, stop strings, log-probabilities, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corefw.errors import CapacityError, CorefwError, EngineError, RequestError
from corefw.frontend.detokenizer import make_detokenizer
from corefw.frontend.stop_strings import StopMatch, StopStrings
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.messages.outputs import EngineCoreOutput, ErrorKind, FinishReason, PositionLogprobs
from corefw.messages.request import EngineCoreRequest, PlainDict

__all__ = ["GenerationUpdate", "OutputProcessor", "TokenLogprob", "error_of_output"]

_Bytes = bytes  # the type, where a field has its name


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one output position.

    Attributes:
        token_id, token, bytes: the chosen token; its text for reading (an incomplete character is U+FFFD), and the
            true bytes: joined over all tokens they are the bytes of the text.
        logprob: natural log.
        rank: of the chosen token, 1 is the most likely.
        top: the most likely tokens in falling order: (id, text, bytes, logprob).
    """

    token_id: int
    token: str
    bytes: _Bytes
    logprob: float
    rank: int
    top: list[tuple[int, str, _Bytes, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationUpdate:
    """News of one output of a request. Every output has exactly one update with a ``finish_reason``, its last.

    Attributes:
        index: which of the n outputs.
        text: what follows the text of the updates before; may be empty while tokens come (held back).
        token_ids: new tokens; nothing after the token that completed a stop string.
        logprobs: one entry a new token, if asked for.
        finish_reason: why it ended.
        stop_reason: the stop string or stop token id that ended it; None for an end token or a limit.
        num_prompt_tokens: length of the prompt.
        num_cached_tokens: prompt tokens taken from the prefix cache.
        extra: plain data that plugins in the core or its workers sent along.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    extra: PlainDict


class OutputProcessor:
    """Turns the core's outputs of one request into updates.

    Order: a token's bytes → characters that are complete → stop strings → text. Stop strings are looked for token by
    token, because the one that completes first ends the output at its token.

    Args:
        tokenizer: of the model.
        request: as sent to the core.
        index: which of the n outputs this is.
    """

    def __init__(self, tokenizer: Tokenizer, request: EngineCoreRequest, index: int) -> None:
        params = request.params
        self._tokenizer = tokenizer
        self._params = params
        self._eos_ids = request.eos_ids
        self._index = index
        self._num_prompt_tokens = len(request.prompt_ids)
        self._num_cached_tokens = 0
        self._num_output_tokens = 0
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        self._replay(request.prior_output_ids)

    def _replay(self, prior_ids: Sequence[int]) -> None:
        """Take up where somebody else left off: what can be said of these tokens has been said."""
        for token_id in prior_ids:
            self._num_output_tokens += 1
            text = self._detokenizer.push((token_id,))
            if self._stops is not None:
                self._push(self._stops, text)

    def process(self, output: EngineCoreOutput) -> GenerationUpdate:
        """The update of one core output.

        If it ends the output although the core's output didn't, a stop string was found, and the core's request has
        to be aborted.

        Raises:
            CorefwError: the core ended the request with an error.
        """
        if output.finish_reason is FinishReason.ERROR:
            raise error_of_output(output)
        if output.num_cached_tokens is not None:
            self._num_cached_tokens = output.num_cached_tokens
        ids = output.new_token_ids
        unseen = 1 if self._ends_with_stop_token(output) else 0
        visible = ids[: len(ids) - unseen]
        last = output.finish_reason is not None
        if self._stops is None:
            text = self._detokenizer.push(visible) + (self._detokenizer.flush() if last else "")
            self._num_output_tokens += len(ids)
            return self._update(output, text, len(ids), None)
        text, num_used, match = self._search(self._stops, visible, last)
        return self._update(output, text, num_used if match else len(ids), match)

    def _ends_with_stop_token(self, output: EngineCoreOutput) -> bool:
        """The token that ends an output isn't part of its text, unless the stop is to be included."""
        if output.finish_reason is not FinishReason.STOP or not output.new_token_ids:
            return False
        if self._params.include_stop_str_in_output:
            return False
        return output.stop_reason is not None or output.new_token_ids[-1] in self._eos_ids

    def _search(self, stops: StopStrings, ids: Sequence[int], last: bool) -> tuple[str, int, StopMatch | None]:
        """Text to give out, tokens used, and the stop string if one was completed."""
        parts: list[str] = []
        for position, token_id in enumerate(ids, start=1):
            self._num_output_tokens += 1
            found = self._push(stops, self._detokenizer.push((token_id,)))
            if isinstance(found, StopMatch):
                return "".join(parts) + found.text, position, found
            parts.append(found)
        if last:
            found = self._push(stops, self._detokenizer.flush())
            if isinstance(found, StopMatch):
                return "".join(parts) + found.text, len(ids), found
            parts += (found, stops.flush())
        return "".join(parts), len(ids), None

    def _push(self, stops: StopStrings, text: str) -> str | StopMatch:
        return stops.push(text, may_end=self._num_output_tokens >= self._params.min_tokens)

    def _update(self, output: EngineCoreOutput, text: str, num_used: int, match: StopMatch | None) -> GenerationUpdate:
        logprobs = output.logprobs
        return GenerationUpdate(
            index=self._index,
            text=text,
            token_ids=output.new_token_ids[:num_used],
            logprobs=None if logprobs is None else [self._token_logprob(entry) for entry in logprobs[:num_used]],
            finish_reason=FinishReason.STOP if match else output.finish_reason,
            stop_reason=match.stop if match else output.stop_reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            extra=output.extra,
        )

    def _token_logprob(self, entry: PositionLogprobs) -> TokenLogprob:
        num_top = self._params.logprobs or 0
        readable = [self._readable(token_id) for token_id in entry.token_ids[: num_top + 1]]
        top = zip(entry.token_ids[1:], readable[1:], entry.logprobs[1:], strict=False)
        token, raw = readable[0]
        return TokenLogprob(
            token_id=entry.token_ids[0],
            token=token,
            bytes=raw,
            logprob=entry.logprobs[0],
            rank=entry.rank,
            top=[(token_id, text, data, logprob) for token_id, (text, data), logprob in top],
        )

    def _readable(self, token_id: int) -> tuple[str, bytes]:
        raw = self._tokenizer.token_bytes(token_id)
        return raw.decode("utf-8", "replace"), raw


def error_of_output(output: EngineCoreOutput) -> CorefwError:
    """The exception for an output that ended with an error."""
    kinds: dict[ErrorKind, type[CorefwError]] = {
        ErrorKind.REQUEST: RequestError,
        ErrorKind.CAPACITY: CapacityError,
        ErrorKind.ENGINE: EngineError,
    }
    return kinds[output.error_kind](output.error or "the request failed in the engine")
