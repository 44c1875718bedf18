"""Which hosts media may come from, and which addresses those may have."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from corefw.errors import RequestError

__all__ = ["AllowedHosts", "Target", "resolve"]

_PORTS = {"http": 80, "https": 443}
_MAX_URL_CHARS = 8192
# Networks that carry IPv4 addresses inside IPv6 ones: a translator on the way may lead to any of those.
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be fetched.

    Attributes:
        scheme: ``http`` or ``https``.
        host, port: to connect to.
        path: with the query, as it is requested.
        is_private: the host is one of the operator's own, whose address isn't checked.
    """

    scheme: str
    host: str
    port: int
    path: str
    is_private: bool


class AllowedHosts:
    """The operator's lists.

    Args:
        domains, private: as in the settings.
    """

    def __init__(self, domains: Sequence[str], private: Sequence[str] = ()) -> None:
        self._domains = tuple(domain.strip().lower() for domain in domains)
        self._private = frozenset(host.strip().lower() for host in private)

    def target(self, url: str, param: str) -> Target:
        """What a URL leads to.

        Raises:
            RequestError: it isn't one that may be fetched; the message doesn't repeat it.
        """
        parts, host, port = _read(url, param)
        is_private = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") in self._private
        if not is_private and not self._allows(host, port, _PORTS[parts.scheme]):
            raise RequestError(
                "this server doesn't fetch media from that host"
                if self._domains or self._private
                else "this server fetches no media; send them as a data URL",
                param=param,
                code="media_host_not_allowed",
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(parts.scheme, host, port, path, is_private)

    def _allows(self, host: str, port: int, default_port: int) -> bool:
        for domain in self._domains:
            name, _, listed_port = domain.partition(":")
            if port != (int(listed_port) if listed_port.isdecimal() else default_port):
                continue
            if name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:])):
                return True
        return False


def resolve(target: Target, param: str) -> list[str]:
    """The addresses of a target's host, all checked; whoever connects takes one of these and asks nobody again.

    Raises:
        RequestError: it has none, or one that isn't public.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise RequestError("the host of that URL isn't known", param=param, code="media_not_fetched") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not target.is_private and not all(_is_public(address) for address in addresses):
        raise RequestError(
            "the host of that URL has an address that isn't public", param=param, code="media_host_not_allowed"
        )
    return addresses


def _read(url: str, param: str) -> tuple[SplitResult, str, int]:
    wrong = RequestError("that isn't an http or https URL that can be fetched", param=param, code="media_url_invalid")
    if len(url) > _MAX_URL_CHARS or not url.isascii() or any(c <= " " or c == "\\" or c == "\x7f" for c in url):
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        raise wrong
    return parts, host, port or _PORTS[parts.scheme]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return _is_public(str(ip.ipv4_mapped))
        if any(ip in network for network in _TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
