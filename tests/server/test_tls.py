"""TLS: answers over it, client certificates, and unusable files that are told before anything starts."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

import httpx
import pytest

from corefw.config.engine_config import ServerConfig
from corefw.errors import ConfigError
from corefw.server.tls import tls_context
from tests.server.certificates import Pair, authority, signed_by, with_password
from tests.server.serving import Running, scripted, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def issuer(folder: Path) -> Pair:
    return authority(folder)


@pytest.fixture(scope="module")
def pair(folder: Path, issuer: Pair) -> Pair:
    return signed_by(issuer, folder, "server")


def client(issuer: Pair, own: Pair | None = None) -> httpx.Client:
    context = ssl.create_default_context(cafile=issuer.cert)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return httpx.Client(verify=context, timeout=10)


def test_a_client_that_knows_the_authority_is_answered(issuer: Pair, pair: Pair) -> None:
    with (
        serving(scripted("Hi"), ssl_certfile=pair.cert, ssl_keyfile=pair.key) as server,
        client(issuer) as known,
        httpx.Client() as stranger,
    ):
        assert server.url == f"https://127.0.0.1:{server.port}"
        answer = known.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        assert answer.json()["choices"][0]["text"] == "Hi"
        with pytest.raises(httpx.ConnectError):
            stranger.get(f"{server.url}/health")
        with pytest.raises(httpx.TransportError):
            stranger.get(f"http://127.0.0.1:{server.port}/health")
        assert known.get(f"{server.url}/health").status_code == 200


def test_a_stream_comes_over_tls(issuer: Pair, pair: Pair) -> None:
    with serving(scripted(), ssl_certfile=pair.cert, ssl_keyfile=pair.key) as server, client(issuer) as known:
        body = {"prompt": "a", "stream": True}
        with known.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            assert list(answer.iter_lines())[-2] == "data: [DONE]"


def test_a_head_that_is_refused_gets_its_answer_over_tls(issuer: Pair, pair: Pair) -> None:
    with serving(scripted(), ssl_certfile=pair.cert, ssl_keyfile=pair.key) as server:
        context = ssl.create_default_context(cafile=issuer.cert)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 70_000)
            received = b""
            while data := connection.recv(65536):
                received += data
        assert received.startswith(b"HTTP/1.1 431")
        assert b"head_too_large" in received


def _status(server: Running, issuer: Pair, own: Pair | None) -> int | str:
    with client(issuer, own) as asking:
        try:
            return asking.get(f"{server.url}/health").status_code
        except httpx.TransportError:
            return "refused"


def test_client_certificates_are_heeded(folder: Path, issuer: Pair, pair: Pair) -> None:
    known = signed_by(issuer, folder, "client")
    unknown = signed_by(authority(folder, "other"), folder, "stranger")
    keys = {"ssl_certfile": pair.cert, "ssl_keyfile": pair.key, "ssl_ca_certs": issuer.cert}
    with serving(scripted(), **keys, ssl_cert_reqs=2) as server:
        assert _status(server, issuer, known) == 200
        assert _status(server, issuer, None) == "refused"
        assert _status(server, issuer, unknown) == "refused"
    with serving(scripted(), **keys, ssl_cert_reqs=1) as server:
        assert _status(server, issuer, known) == 200
        assert _status(server, issuer, None) == 200
        assert _status(server, issuer, unknown) == "refused"


def test_a_certificate_and_its_key_may_be_in_one_file(folder: Path, pair: Pair) -> None:
    both = folder / "both.pem"
    both.write_text(Path(pair.cert).read_text() + Path(pair.key).read_text())
    assert tls_context(ServerConfig(ssl_certfile=str(both))) is not None


def test_old_versions_of_tls_are_not_spoken(pair: Pair) -> None:
    context = tls_context(ServerConfig(ssl_certfile=pair.cert, ssl_keyfile=pair.key))
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(ServerConfig()) is None


def refusal(**settings: str | int) -> str:
    with pytest.raises(ConfigError) as caught:
        tls_context(ServerConfig(**settings))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_would_wait_or_never_ends_is_refused_at_once(tmp_path: Path, pair: Pair) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    assert "a named pipe" in refusal(ssl_certfile=str(pipe))
    assert "a named pipe" in refusal(ssl_certfile=pair.cert, ssl_keyfile=str(pipe))
    assert "a device" in refusal(
        ssl_certfile=pair.cert, ssl_keyfile=pair.key, ssl_ca_certs="/dev/zero", ssl_cert_reqs=2
    )
    link = tmp_path / "link.pem"
    link.symlink_to(pair.cert)
    assert tls_context(ServerConfig(ssl_certfile=str(link), ssl_keyfile=pair.key)) is not None


def test_a_file_that_cannot_be_used_is_named_in_one_sentence(folder: Path, issuer: Pair, pair: Pair) -> None:
    text = folder / "text.pem"
    text.write_text("nothing")
    missing, cert, key = str(folder / "missing"), pair.cert, pair.key
    assert refusal(ssl_certfile=missing) == f"--ssl-certfile {missing!r} can't be read: No such file or directory"
    assert "--ssl-keyfile" in refusal(ssl_certfile=cert, ssl_keyfile=missing)
    assert "--ssl-ca-certs" in refusal(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=missing, ssl_cert_reqs=2)
    said = "can't be read: isn't a regular file, but a directory"
    assert refusal(ssl_certfile=str(folder)) == f"--ssl-certfile {str(folder)!r} {said}"
    assert "has no certificate in PEM form" in refusal(ssl_certfile=str(text), ssl_keyfile=key)
    assert "has no key in PEM form" in refusal(ssl_certfile=cert, ssl_keyfile=str(text))
    assert "has no key in PEM form; give its file with --ssl-keyfile" in refusal(ssl_certfile=cert)
    assert "doesn't belong to the certificate" in refusal(ssl_certfile=cert, ssl_keyfile=issuer.key)
    has_none = refusal(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=str(text), ssl_cert_reqs=2)
    assert "--ssl-ca-certs" in has_none
    assert "has no certificates in PEM form" in has_none
    assert "selects no cipher" in refusal(ssl_certfile=cert, ssl_keyfile=key, ssl_ciphers="NOTHING")


def test_a_key_with_a_password_is_refused_without_asking_for_it(folder: Path, pair: Pair) -> None:
    assert "has a password; use one without" in refusal(ssl_certfile=pair.cert, ssl_keyfile=with_password(pair, folder))
