"""Checks of the server's settings that have to fit each other."""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING

from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.engine_config import ServerConfig

__all__ = ["check_cors", "check_limits", "check_otlp_endpoint", "check_root_path", "check_tls", "check_uds"]

_MAX_SHOWN = 80
# As browsers send it: nothing after the host and port, and no capital letters.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://(\[[0-9a-f:.]+\]|[a-z0-9._\-]+)(:[0-9]{1,5})?")
_TOKEN = re.compile(r"\*|[A-Za-z0-9!#$%&'*+.^_`|~\-]{1,200}")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~\-]+)+")
# What a socket's address holds on Linux, without the zero at its end.
_MAX_UDS_BYTES = 107


def check_cors(config: ServerConfig) -> None:
    """Origins, methods and headers that pages of other origins may use.

    Raises:
        ConfigError: one is malformed, has no effect, or would open the server to every page.
    """
    for origin in config.allowed_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--allowed-origins {origin[:_MAX_SHOWN]!r} is no origin; write it as browsers do, like "
                "https://example.com or http://localhost:3000, or * for all; repeat the flag for more"
            )
    for flag, words in (("--allowed-methods", config.allowed_methods), ("--allowed-headers", config.allowed_headers)):
        for word in words:
            if not _TOKEN.fullmatch(word):
                raise ConfigError(f"{flag} {word[:_MAX_SHOWN]!r} is none; give one name, repeat the flag for more")
        if words != ("*",) and not config.allowed_origins:
            raise ConfigError(f"{flag} has no effect without --allowed-origins")
    if any(method != method.upper() for method in config.allowed_methods):
        raise ConfigError("--allowed-methods are written in capitals, like POST")
    if config.allow_credentials and not config.allowed_origins:
        raise ConfigError("--allow-credentials has no effect without --allowed-origins")
    if config.allow_credentials and "*" in config.allowed_origins:
        raise ConfigError(
            "--allow-credentials with --allowed-origins * would let every page act for its visitors; name the origins"
        )


def check_root_path(root_path: str) -> None:
    """The prefix under which a proxy shows this server.

    Raises:
        ConfigError: it is none.
    """
    segments = root_path.split("/")
    if root_path and (not _ROOT_PATH.fullmatch(root_path) or "." in segments or ".." in segments):
        raise ConfigError(
            f"--root-path {root_path[:_MAX_SHOWN]!r} is no prefix of paths; it begins with a slash, ends without one, "
            "and has letters, digits and -._~ between slashes, like /api"
        )


def check_tls(config: ServerConfig) -> None:
    """Settings of TLS that need each other; the files are read when the server starts.

    Raises:
        ConfigError: one has no effect without another.
    """
    if config.ssl_certfile is None:
        given = (
            ("--ssl-keyfile", config.ssl_keyfile),
            ("--ssl-ca-certs", config.ssl_ca_certs),
            ("--ssl-cert-reqs", config.ssl_cert_reqs),
            ("--ssl-ciphers", config.ssl_ciphers),
        )
        for flag, value in given:
            if value:
                raise ConfigError(f"{flag} has no effect without --ssl-certfile")
    elif config.ssl_cert_reqs and config.ssl_ca_certs is None:
        raise ConfigError("--ssl-cert-reqs needs --ssl-ca-certs, which says whose client certificates count")
    elif config.ssl_ca_certs is not None and not config.ssl_cert_reqs:
        raise ConfigError("--ssl-ca-certs has no effect without --ssl-cert-reqs 1 (a client may) or 2 (a client must)")


def check_uds(config: ServerConfig) -> None:
    """The path of a unix socket.

    Raises:
        ConfigError: too long, or with TLS.
    """
    if config.uds is None:
        return
    if len(config.uds.encode()) > _MAX_UDS_BYTES:
        raise ConfigError(f"--uds must have at most {_MAX_UDS_BYTES} bytes, got {len(config.uds.encode())}")
    if config.ssl_certfile is not None:
        raise ConfigError("--ssl-certfile is for TCP; leave it out with --uds, whose clients are on this machine")


def check_limits(config: ServerConfig) -> None:
    """Limits that contain each other.

    Raises:
        ConfigError: a request within one limit could never be within the other.
    """
    total = config.max_total_body_bytes
    if total is not None and total < config.max_body_bytes:
        raise ConfigError(
            f"--max-total-body-bytes must be at least --max-body-bytes {config.max_body_bytes}, got {total}"
        )
    if config.request_timeout is not None and not config.request_timeout > 0:
        raise ConfigError("--request-timeout must be above 0; leave it out to let requests take any time")


def check_otlp_endpoint(config: ServerConfig) -> None:
    """Where spans go.

    Raises:
        ConfigError: not the URL of a collector that speaks HTTP.
    """
    url = config.otlp_traces_endpoint
    if url is not None and not _is_http_url(url):
        raise ConfigError(
            f"--otlp-traces-endpoint {url[:_MAX_SHOWN]!r} is no URL of a collector; spans go out as OTLP over HTTP, so "
            "write one like http://localhost:4318/v1/traces"
        )


def _is_http_url(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        has_port = parts.port is None or parts.port > 0  # reading a port that is none raises
    except ValueError:
        return False
    is_plain = url.isascii() and " " not in url
    return is_plain and has_port and parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment
