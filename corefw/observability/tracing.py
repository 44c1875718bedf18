"""One OpenTelemetry span a request. OpenTelemetry itself is imported only where spans are wanted."""

from __future__ import annotations

import importlib.util
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from corefw.errors import ConfigError
from corefw.observability.logging import get_logger

if TYPE_CHECKING:
    from corefw.observability.metrics_record import FinishedSequence

__all__ = ["RequestSpan", "SampledBy", "Tracing", "require_packages", "traces_url"]

logger = get_logger(__name__)

_PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_PATH = "/v1/traces"
_SPAN_NAME = "llm_request"
_PARENT_HEADERS = ("traceparent", "tracestate")
_MAX_ERROR_CHARS = 300


class SampledBy(Protocol):
    """What a span tells of a request's parameters."""

    @property
    def n(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def max_tokens(self) -> int | None: ...


class Tracing:
    """Makes spans and sends them in the background, in batches. Used by one thread, ``shutdown`` excepted.

    A collector that doesn't answer costs spans and one warning, never time of a request.

    Args:
        endpoint: URL of the collector; without a path, the one that OTLP gives to spans.

    Raises:
        ConfigError: OpenTelemetry isn't installed, or refuses one of its variables.
    """

    def __init__(self, endpoint: str) -> None:
        require_packages()
        try:
            from corefw.observability.tracing_export import SpanExport

            self._export = SpanExport(traces_url(endpoint))
        except ValueError as error:
            raise ConfigError(
                f"--otlp-traces-endpoint: OpenTelemetry refuses one of its variables (OTEL_…): {error}"
            ) from error
        logger.info("spans go to %s", self._export.shown_url)

    def begin(
        self, request_id: str, model: str, params: SampledBy, headers: Mapping[str, str], arrival_s: float
    ) -> RequestSpan:
        """The span of a request that came at ``arrival_s``, on the monotonic clock.

        Args:
            request_id: the answer's id.
            model: name under which the client asked.
            params: how tokens are chosen.
            headers: of the HTTP request; ``traceparent`` names the span that this one belongs to.
            arrival_s: see above.
        """
        attributes = {
            "gen_ai.request.id": request_id,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.request.n": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.max_tokens": params.max_tokens,
        }
        parent = {name: headers[name] for name in _PARENT_HEADERS if name in headers}
        return RequestSpan(self._export, attributes, parent, arrival_s)

    def shutdown(self, timeout_s: float) -> None:
        """Send what is left; after ``timeout_s`` seconds it is given up. Blocks; may be called again."""
        # Sending has time limits of its own, longer ones; the process may end while this thread still waits.
        thread = threading.Thread(target=self._export.shutdown, name="spans-shutdown", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            logger.warning("the last spans did not reach %s within %g s", self._export.shown_url, timeout_s)


class RequestSpan:
    """A request's span; it is made when the request has ended and everything is known, with its true times."""

    __slots__ = ("_arrival_s", "_attributes", "_export", "_parent", "_start_ns")

    def __init__(self, export: Any, attributes: dict[str, Any], parent: Mapping[str, str], arrival_s: float) -> None:
        self._export = export
        self._attributes = attributes
        self._parent = parent
        self._arrival_s = arrival_s
        self._start_ns = time.time_ns() - _ns(time.monotonic() - arrival_s)

    def end(self, sequences: Sequence[FinishedSequence], *, num_prompt_tokens: int, error: Exception | None) -> None:
        """The request has ended; call it once.

        Args:
            sequences: all of its, ended.
            num_prompt_tokens: of all prompts, each counted once.
            error: why it failed, if it did.
        """
        attributes = self._attributes | _usage(sequences, num_prompt_tokens) | _latencies(sequences)
        problem = _problem(sequences, error)
        if problem is not None:
            attributes["error.type"] = problem[0]
        self._export.span(
            _SPAN_NAME,
            {name: value for name, value in attributes.items() if value is not None},
            parent=self._parent,
            start_ns=self._start_ns,
            end_ns=self._start_ns + _ns(time.monotonic() - self._arrival_s),
            error=problem and problem[1],
        )


def _usage(sequences: Sequence[FinishedSequence], num_prompt_tokens: int) -> dict[str, Any]:
    return {
        "gen_ai.usage.num_sequences": len(sequences),
        "gen_ai.usage.prompt_tokens": num_prompt_tokens,
        "gen_ai.usage.completion_tokens": sum(sequence.num_generation_tokens for sequence in sequences),
        "gen_ai.response.finish_reasons": [sequence.finish_reason for sequence in sequences],
    }


def _latencies(sequences: Sequence[FinishedSequence]) -> dict[str, float | None]:
    """In seconds. Of several sequences the first token counts that came first, and of the rest the longest."""
    return {
        "gen_ai.latency.e2e": _longest(sequence.e2e_s for sequence in sequences),
        "gen_ai.latency.time_in_queue": _longest(sequence.queue_s for sequence in sequences),
        "gen_ai.latency.time_to_first_token": min(
            (s.time_to_first_token_s for s in sequences if s.time_to_first_token_s is not None), default=None
        ),
        "gen_ai.latency.time_in_model_prefill": _longest(sequence.prefill_s for sequence in sequences),
        "gen_ai.latency.time_in_model_decode": _longest(sequence.decode_s for sequence in sequences),
        "gen_ai.latency.time_in_model_inference": _longest(sequence.inference_s for sequence in sequences),
    }


def _longest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _problem(sequences: Sequence[FinishedSequence], error: Exception | None) -> tuple[str, str] | None:
    """Kind and description of what kept the request from its end."""
    if error is not None:
        return type(error).__name__, str(error)[:_MAX_ERROR_CHARS]
    reasons = {sequence.finish_reason for sequence in sequences}
    if "error" in reasons:
        return "error", "a sequence failed"
    if "abort" in reasons:
        return "abort", "the request was aborted before its end"
    return None


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def traces_url(endpoint: str) -> str:
    """The URL that spans are posted to: the endpoint, with OTLP's path for spans where it has none."""
    parts = urllib.parse.urlsplit(endpoint)
    return urllib.parse.urlunsplit(parts if parts.path.strip("/") else parts._replace(path=_PATH))


def require_packages() -> None:
    """Find OpenTelemetry without importing it.

    Raises:
        ConfigError: it isn't installed; says how to.
    """
    for name in _PACKAGES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ConfigError(
                f"--otlp-traces-endpoint needs OpenTelemetry, and {name} isn't installed: pip install 'corefw[otel]'"
            )
