"""What is in flight in a core: enough of each request to give it to another core at the position it has reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from corefw.messages.outputs import EngineCoreOutput, EngineCoreOutputs, ErrorKind, FinishReason
from corefw.messages.request import EngineCoreRequest

__all__ = ["Entry", "Ledger"]


class Entry:
    """A request whose end hasn't been told.

    Attributes:
        request: as it came.
        output_ids: tokens that have been handed on.
        is_in_core: whether the present core has it.
        is_aborted: whether nobody wants the rest.
        has_spoken: whether an output has been handed on, and with it all that only the first output tells.
        has_progressed: whether the present core has got a token of it.
    """

    __slots__ = ("has_progressed", "has_spoken", "is_aborted", "is_in_core", "output_ids", "request")

    def __init__(self, request: EngineCoreRequest) -> None:
        self.request = request
        self.output_ids: list[int] = []
        self.is_in_core = False
        self.is_aborted = False
        self.has_spoken = False
        self.has_progressed = False

    def continued(self) -> EngineCoreRequest:
        """The request for a core that hasn't seen it."""
        if not self.has_spoken:
            return self.request
        params = self.request.params
        if params.prompt_logprobs is not None:  # told already, and computing them costs the prefix cache
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        prior_output_ids = [*self.request.prior_output_ids, *self.output_ids]
        return msgspec.structs.replace(self.request, params=params, prior_output_ids=prior_output_ids)


class Ledger:
    """Requests in the order in which they came.

    Args:
        on_progress: called with a request's id when the present core has got its first token of it, and when it ends;
            and with whether there are new tokens.
    """

    def __init__(self, on_progress: Callable[[str, bool], None]) -> None:
        self._on_progress = on_progress
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def add(self, request: EngineCoreRequest) -> Entry:
        """A request has come."""
        entry = self._entries[request.request_id] = Entry(request)
        return entry

    def get(self, request_id: str) -> Entry | None:
        """The entry of a request; None where it is unknown or has ended."""
        return self._entries.get(request_id)

    def core_lost(self) -> None:
        """No core has any of them now."""
        for entry in self._entries.values():
            entry.is_in_core = entry.has_progressed = False

    def take(self, outputs: Sequence[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Write down what a core has sent; returns it as it may be handed on: a first output tells things once."""
        return [self._take(output) for output in outputs]

    def end(
        self, request_id: str, reason: FinishReason, error: str | None = None, kind: ErrorKind = ErrorKind.ENGINE
    ) -> EngineCoreOutputs:
        """End a request here; returns the message that says so."""
        output = EngineCoreOutput(request_id=request_id, finish_reason=reason, error=error, error_kind=kind)
        return EngineCoreOutputs(outputs=self.take([output]))

    def _take(self, output: EngineCoreOutput) -> EngineCoreOutput:
        entry = self._entries.get(output.request_id)
        if entry is None:
            return output
        ended = output.finish_reason is not None
        entry.output_ids += output.new_token_ids
        if ended:
            del self._entries[output.request_id]
        if ended or (output.new_token_ids and not entry.has_progressed):
            entry.has_progressed = True
            self._on_progress(output.request_id, bool(output.new_token_ids))
        if not entry.has_spoken:
            entry.has_spoken = True
        elif output.num_cached_tokens is not None or output.times is not None:  # another core's first output
            return msgspec.structs.replace(output, num_cached_tokens=None, times=None, prompt_logprobs=None)
        return output
