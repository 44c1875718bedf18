"""Settings of the server that need or exclude each other are refused together, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError


@pytest.mark.parametrize(
    "origin", ["*", "https://a.example", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"]
)
def test_an_origin_is_taken_as_browsers_send_it(origin: str) -> None:
    assert ServerConfig(allowed_origins=(origin,)).allowed_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "a.example",
        "https://a.example/",
        "https://A.example",
        "https://a.example/x",
        '["*"]',
        "null",
        "https://*",
        "*,*",
    ],
)
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"--allowed-origins .* is no origin"):
        ServerConfig(allowed_origins=(origin,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allow_credentials": True}, "--allow-credentials has no effect without --allowed-origins"),
        ({"allowed_methods": ("GET",)}, "--allowed-methods has no effect without"),
        ({"allowed_headers": ("X-A",)}, "--allowed-headers has no effect without"),
        ({"allowed_origins": ("*",), "allow_credentials": True}, r"--allow-credentials with --allowed-origins \*"),
        ({"allowed_origins": ("*",), "allowed_methods": ("GET, POST",)}, "--allowed-methods 'GET, POST' is none"),
        ({"allowed_origins": ("*",), "allowed_methods": ("get",)}, "in capitals"),
        ({"allowed_origins": ("*",), "allowed_headers": ("X A",)}, "--allowed-headers 'X A' is none"),
        ({"ssl_keyfile": "k"}, "--ssl-keyfile has no effect without --ssl-certfile"),
        ({"ssl_ca_certs": "k"}, "--ssl-ca-certs has no effect without --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs has no effect without --ssl-certfile"),
        ({"ssl_ciphers": "ALL"}, "--ssl-ciphers has no effect without --ssl-certfile"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 3}, r"--ssl-cert-reqs must be in \[0, 2\], got 3"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 1}, "--ssl-cert-reqs needs --ssl-ca-certs"),
        ({"ssl_certfile": "c", "ssl_ca_certs": "c"}, "--ssl-ca-certs has no effect without --ssl-cert-reqs"),
        ({"uds": "/x", "ssl_certfile": "c"}, "--ssl-certfile is for TCP"),
        ({"max_body_bytes": 2**20, "max_total_body_bytes": 2**19}, "must be at least --max-body-bytes 1048576"),
        ({"request_timeout": 0.0}, "--request-timeout must be above 0"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**settings)


@pytest.mark.parametrize("root_path", ["", "/api", "/a/b-c_d.e~f"])
def test_a_root_path_is_a_prefix_of_paths(root_path: str) -> None:
    assert ServerConfig(root_path=root_path).root_path == root_path


@pytest.mark.parametrize(
    "root_path", ["api", "/", "/api/", "//a", "/a//b", "/a/../b", "/.", "/a b", "/a?b", "/é", "http://x/a"]
)
def test_what_is_no_prefix_of_paths_is_refused(root_path: str) -> None:
    with pytest.raises(ConfigError, match=r"--root-path .* is no prefix of paths"):
        ServerConfig(root_path=root_path)


def test_all_bodies_together_may_take_64_times_the_largest_unless_told() -> None:
    assert ServerConfig(max_body_bytes=2048).total_body_bytes == 64 * 2048
    assert ServerConfig(max_total_body_bytes=2**30).total_body_bytes == 2**30
