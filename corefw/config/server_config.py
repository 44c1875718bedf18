"""The HTTP server's section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from corefw.config.checks import check_api_key, check_options
from corefw.config.options import Section, option
from corefw.config.server_checks import (
    check_cors,
    check_limits,
    check_otlp_endpoint,
    check_root_path,
    check_tls,
    check_uds,
)
from corefw.observability.metrics_catalog import METRICS_NAMES

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "ServerConfig"]

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("text", "json")
_WEEK_S = 7 * 24 * 3600
_BODIES_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig(Section):
    """The HTTP server; only the front end reads it."""

    host: str = option("127.0.0.1", "address to listen on", may_be_empty=True)
    api_server_count: int = option(1, "processes that answer HTTP requests, all on one socket", low=1, high=256)
    port: int = option(8000, "port to listen on; 0 picks a free one and prints it", high=65535)
    uds: str | None = option(None, "path of a unix socket to listen on instead of --host and --port")
    root_path: str = option("", "prefix under which a proxy shows this server, like /api", may_be_empty=True)
    api_key: tuple[str, ...] = option(
        (), "key that clients must send as a bearer token; may be given more than once", secret=True
    )
    ssl_certfile: str | None = option(None, "PEM file with the certificate (and its chain); the server then speaks TLS")
    ssl_keyfile: str | None = option(None, "PEM file with its key, without a password; default: in --ssl-certfile")
    ssl_ca_certs: str | None = option(None, "PEM file with the authorities whose client certificates count")
    ssl_cert_reqs: int = option(
        0, "client certificates: 0 not asked for, 1 checked if there is one, 2 required", high=2
    )
    ssl_ciphers: str | None = option(None, "ciphers of TLS 1.2 in OpenSSL's notation; default: Python's")
    allowed_origins: tuple[str, ...] = option(
        (), "origin whose pages may use this server (CORS), * for all; may be given more than once; default: none"
    )
    allowed_methods: tuple[str, ...] = option(("*",), "method that such pages may use; may be given more than once")
    allowed_headers: tuple[str, ...] = option(("*",), "header that such pages may send; may be given more than once")
    allow_credentials: bool = option(False, "let such pages send cookies and client certificates")
    allow_route_override: tuple[str, ...] = option(
        (), "plugin whose routes may stand before the core's or around them; may be given more than once", unique=True
    )
    max_body_bytes: int = option(8 * 2**20, "largest request body", low=1024)
    max_total_body_bytes: int | None = option(
        None,
        "bytes of the bodies of all requests together that are being answered, and as many of the embeddings in them "
        "and their copies for n outputs; default: 64 of the largest",
        low=1024,
    )
    max_concurrent_requests: int = option(
        4096, "sequences (prompts times n) that may run or wait at once; what comes on top gets 429", low=1, high=2**20
    )
    request_timeout: float | None = option(
        None, "seconds that a request may take from its last byte to its answer's; default: any", high=_WEEK_S
    )
    max_n: int = option(128, "largest n of a request", low=1, high=65536)
    max_logprobs: int = option(
        20,
        "largest number of log-probabilities a token; -1: no limit, and -1 in a request asks for all",
        low=-1,
        high=2**24,
    )
    max_prompts: int = option(2048, "prompts in one completions request", low=1, high=2**20)
    shutdown_timeout: float = option(30.0, "seconds that running requests get to finish on SIGTERM", high=_WEEK_S)
    restart_engine: bool = option(True, "start an engine that died again; requests then go on where they stopped")
    max_engine_restarts: int = option(5, "restarts in a row that may bring no progress", low=1, high=2**31)
    sse_keep_alive: float = option(
        15.0, "seconds without an event after which a stream gets a comment and isn't cut; 0: never", high=_WEEK_S
    )
    log_level: str | None = option(
        None, "least level of the log; default: COREFW_LOG_LEVEL or INFO", choices=LOG_LEVELS
    )
    log_format: str = option("text", "form of the log: lines to read, or one JSON object a line", choices=LOG_FORMATS)
    access_log: bool = option(False, "log a line a request")
    disable_log_stats: bool = option(False, "don't log the engine's state every 10 seconds while it is busy")
    metrics_names: str = option(
        "corefw",
        "names and labels of the metrics; vllm: those that dashboards made for vLLM read",
        choices=METRICS_NAMES,
    )
    otlp_traces_endpoint: str | None = option(
        None, "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a span a request; needs corefw[otel]"
    )

    def __post_init__(self) -> None:
        if isinstance(self.log_level, str):  # in any spelling that the environment variable may have
            object.__setattr__(self, "log_level", self.log_level.strip().upper())
        check_options(self)
        for key in self.api_key:
            check_api_key("--api-key", key)
        for check in (check_cors, check_tls, check_uds, check_limits, check_otlp_endpoint):
            check(self)
        check_root_path(self.root_path)

    @property
    def total_body_bytes(self) -> int:
        """What the bodies of all requests together may take."""
        return self.max_total_body_bytes or _BODIES_AT_ONCE * self.max_body_bytes
