"""What imports OpenTelemetry: a provider of its own, and an exporter that says once that nobody listens."""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import corefw
from corefw.observability.logging import get_logger

__all__ = ["SpanExport"]

logger = get_logger(__name__)


class SpanExport:
    """Sends spans to one URL. ``span`` never blocks; the library's variables (``OTEL_…``) hold for all the rest.

    Attributes:
        shown_url: the URL without what may be secret in it.
    """

    def __init__(self, url: str) -> None:
        self.shown_url = _without_secrets(url)
        with _complaints_told():
            # The process has no global provider: that would be other libraries' spans, too.
            self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
            exporter = _SpeakingExporter(OTLPSpanExporter(endpoint=url), self.shown_url)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("corefw", corefw.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def span(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        parent: Mapping[str, str],
        start_ns: int,
        end_ns: int,
        error: str | None,
    ) -> None:
        """A span that is complete: Unix times in nanoseconds, and what went wrong, if something did."""
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(dict(parent)),
            kind=SpanKind.SERVER,
            attributes=dict(attributes),
            start_time=start_ns,
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=end_ns)

    def shutdown(self) -> None:
        """Send what is left; blocks as long as the library wants."""
        self._provider.shutdown()


class _SpeakingExporter(SpanExporter):  # type: ignore[misc]
    """Tells of a collector that doesn't answer once, and once when it is back. Called by the library's thread."""

    def __init__(self, exporter: OTLPSpanExporter, shown_url: str) -> None:
        self._exporter = exporter
        self._shown_url = shown_url
        self._num_lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result, why = self._send(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._num_lost:
                logger.warning("spans don't reach %s%s; they are lost until it answers", self._shown_url, why)
            self._num_lost += len(spans)
        elif self._num_lost:
            logger.info("spans reach %s again; %d were lost", self._shown_url, self._num_lost)
            self._num_lost = 0
        return result

    def _send(self, spans: Sequence[ReadableSpan]) -> tuple[SpanExportResult, str]:
        try:
            return self._exporter.export(spans), ""
        except Exception as error:  # a missing certificate, say; the library would tell its own log alone
            return SpanExportResult.FAILURE, f" ({error})"

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


def _resource() -> Resource:
    """What ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say; without a name it is corefw."""
    resource = Resource.create({"service.version": corefw.__version__})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "corefw"}))
    return resource


class _Forwarding(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Into our own log, on one line."""
        logger.warning("OpenTelemetry: %s", " ".join(record.getMessage().split()))


@contextlib.contextmanager
def _complaints_told() -> Iterator[None]:
    """A block in which the library sets itself up: what it finds wrong with its variables is logged.

    Later it would write a line a try, past our own log; ``_SpeakingExporter`` says what matters.
    """
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    forwarding = _Forwarding(logging.WARNING)
    library.addHandler(forwarding)
    try:
        yield
    finally:
        library.removeHandler(forwarding)
        if not library.handlers:
            library.addHandler(logging.NullHandler())


def _without_secrets(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))
