"""Binding: what an operator is told when it doesn't work."""

from __future__ import annotations

import socket

import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError
from corefw.server.listener import bind_socket, url_of


def test_port_zero_picks_a_free_one_and_its_url_is_known() -> None:
    with bind_socket(ServerConfig(port=0)) as bound:
        port = bound.getsockname()[1]
        assert port > 0
        assert url_of(bound) == f"http://127.0.0.1:{port}"


def test_a_taken_port_is_told_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} on 127\.0\.0\.1 is in use.*0 picks a free one"):
            bind_socket(ServerConfig(port=port))


@pytest.mark.parametrize("host", ["256.1.1.1", "no such host", "192.0.2.1", "x" * 300, "é" * 100])
def test_a_host_that_is_not_of_this_machine_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        bind_socket(ServerConfig(host=host, port=0))


def test_a_port_is_free_again_at_once() -> None:
    with bind_socket(ServerConfig(port=0)) as bound:
        port = bound.getsockname()[1]
    with bind_socket(ServerConfig(port=port)) as again:
        assert again.getsockname()[1] == port
