"""An OpenTelemetry collector: a real HTTP server that decodes what is posted to it."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """What was received of one span."""

    name: str
    trace_id: str
    parent_id: str
    kind: int
    start_s: float
    end_s: float
    status: int
    message: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Listens on ``url``; ``status`` is what it answers, after ``delay_s``."""

    url: str = ""
    status: int = 200
    delay_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def wait(self, num_spans: int, limit_s: float = 10.0) -> list[Span]:
        """Wait for spans; all that came."""
        deadline = time.monotonic() + limit_s
        while len(self.spans) < num_spans:
            assert time.monotonic() < deadline, f"{len(self.spans)} of {num_spans} spans came"
            time.sleep(0.02)
        return list(self.spans)


@contextmanager
def collecting(**settings: Any) -> Iterator[Collector]:
    collector = Collector(**settings)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(collector.delay_s)
            collector.paths.append(self.path)
            assert self.headers["content-type"] == "application/x-protobuf"
            if collector.status == 200:
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            parent_id=span.parent_span_id.hex(),
            kind=span.kind,
            start_s=span.start_time_unix_nano / 1e9,
            end_s=span.end_time_unix_nano / 1e9,
            status=span.status.code,
            message=span.status.message,
            attributes={item.key: _value(item.value) for item in span.attributes},
            resource={item.key: _value(item.value) for item in resource_spans.resource.attributes},
        )
        for resource_spans in request.resource_spans
        for scope in resource_spans.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
