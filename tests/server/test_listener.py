"""The socket: a wrong address is told at once, with the remedy; a file that isn't ours is never touched."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import httpx
import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError
from corefw.server.listener import Listener, listen_on
from tests.server.serving import scripted, serving


def port_of(listener: Listener) -> int:
    port: int = listener.socket.getsockname()[1]
    return port


def test_port_zero_picks_a_free_one_and_tells_it() -> None:
    listener = listen_on(ServerConfig(port=0))
    assert port_of(listener) > 0
    assert listener.url == f"http://127.0.0.1:{port_of(listener)}"
    listener.close()


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port} on 127.0.0.1 is in use"):
            listen_on(ServerConfig(port=port))


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "", "x" * 300])
def test_an_address_that_is_not_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        listen_on(ServerConfig(host=host or "300.1.1.1", port=0))


def test_a_port_can_be_bound_again_after_it_was_closed() -> None:
    first = listen_on(ServerConfig(port=0))
    port = port_of(first)
    first.close()
    again = listen_on(ServerConfig(port=port))
    assert port_of(again) == port
    again.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corefw.sock"


def on(path: Path) -> Listener:
    return listen_on(ServerConfig(uds=str(path)))


def test_a_server_on_a_unix_socket_answers_and_leaves_no_file(path: Path) -> None:
    with serving(scripted("Hi"), uds=str(path)) as server:
        assert server.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
            answer = client.post("/v1/completions", json={"prompt": "a"})
            assert answer.json()["choices"][0]["text"] == "Hi"
    assert not path.exists()


def test_the_socket_of_a_dead_server_is_replaced(path: Path) -> None:
    dead = on(path)
    dead.socket.close()
    assert path.exists()
    listener = on(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()
    assert not path.exists()


@pytest.mark.parametrize("fill", [False, True])
def test_the_socket_of_a_server_that_lives_is_left_alone(path: Path, fill: bool) -> None:
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4 if fill else 0)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(ConfigError, match="is in use"):
            on(path)
        for client in clients:
            client.close()
    assert path.exists()


def test_a_server_that_is_still_starting_counts_as_alive(path: Path) -> None:
    starting = on(path)
    with pytest.raises(ConfigError, match="is in use"):
        on(path)
    starting.close()


def test_what_is_no_socket_is_never_removed(path: Path, tmp_path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket; it is left as it is"):
        on(path)
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="is no socket"):
        on(link)
    assert link.is_symlink()
    with pytest.raises(ConfigError, match="is no socket"):
        on(tmp_path)


def test_the_file_of_the_server_that_came_after_is_not_removed(path: Path) -> None:
    first = on(path)
    first.socket.close()
    second = on(path)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_directory_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--uds '.*' can't be made: No such file or directory"):
        on(tmp_path / "missing" / "x.sock")


def test_a_path_that_no_socket_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 107 bytes, got 202"):
        ServerConfig(uds="/" + "é" * 100 + "x")


def test_the_process_keeps_its_umask(path: Path) -> None:
    before = os.umask(0o022)
    try:
        on(path).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
