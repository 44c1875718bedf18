"""Certificates for tests, made with OpenSSL's own program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: str
    key: str


def authority(directory: Path, name: str = "authority") -> Pair:
    """One that signs others."""
    return _make(directory, name, "-addext", "basicConstraints=critical,CA:TRUE")


def signed_by(issuer: Pair, directory: Path, name: str) -> Pair:
    """One for 127.0.0.1 and localhost that ``issuer`` signs."""
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    return _make(directory, name, "-CA", issuer.cert, "-CAkey", issuer.key, "-addext", names)


def with_password(pair: Pair, directory: Path) -> str:
    """The pair's key, encrypted."""
    path = str(directory / "encrypted.key")
    _openssl("pkey", "-in", pair.key, "-aes256", "-passout", "pass:secret", "-out", path)
    return path


def _make(directory: Path, name: str, *words: str) -> Pair:
    pair = Pair(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", pair.key, "-out", pair.cert, *words,
    )  # fmt: skip
    return pair


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
