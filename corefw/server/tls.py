"""TLS: certificate, key and client certificates, checked before anything slow starts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from corefw.config.regular_file import open_regular
from corefw.errors import ConfigError

if TYPE_CHECKING:
    from corefw.config.engine_config import ServerConfig

__all__ = ["tls_context"]

_CLIENT_CERTIFICATES = (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """What connections are wrapped in; None without a certificate.

    Raises:
        ConfigError: a file can't be read or used, with which and why.
    """
    if config.ssl_certfile is None:
        return None
    for flag, name in (
        ("--ssl-certfile", config.ssl_certfile),
        ("--ssl-keyfile", config.ssl_keyfile),
        ("--ssl-ca-certs", config.ssl_ca_certs),
    ):
        if name is not None:
            _check_file(flag, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 and later
    _load_certificate(context, config.ssl_certfile, config.ssl_keyfile)
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError:
            raise ConfigError(f"--ssl-ca-certs {config.ssl_ca_certs!r} has no certificates in PEM form") from None
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError:
            raise ConfigError(f"--ssl-ciphers {config.ssl_ciphers[:80]!r} selects no cipher that OpenSSL has") from None
    context.verify_mode = _CLIENT_CERTIFICATES[config.ssl_cert_reqs]
    return context


def _check_file(flag: str, name: str) -> None:
    try:
        open_regular(Path(name)).close()
    except OSError as error:
        raise ConfigError(f"{flag} {name!r} can't be read: {error.strerror}") from None


def _load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
    def no_password() -> NoReturn:  # else OpenSSL asks the terminal
        raise ConfigError(f"the key in {keyfile or certfile!r} has a password; use one without")

    try:
        context.load_cert_chain(certfile, keyfile, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"the key in {keyfile or certfile!r} doesn't belong to the certificate in {certfile!r}"
            ) from None
        if _has_certificate(certfile):
            raise ConfigError(
                f"{keyfile or certfile!r} has no key in PEM form; give its file with --ssl-keyfile"
            ) from None
        raise ConfigError(f"--ssl-certfile {certfile!r} has no certificate in PEM form") from None


def _has_certificate(certfile: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certfile)
    except ssl.SSLError:
        return False
    return True
