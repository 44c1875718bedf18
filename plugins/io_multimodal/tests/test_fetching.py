"""Fetching: only allowed hosts, only public addresses, at each redirect; never too much, never too long."""

from __future__ import annotations

import socket
import time

import pytest

from corefw.errors import CapacityError, RequestError
from corefw_io_multimodal.addresses import AllowedHosts
from corefw_io_multimodal.memory import Memory
from corefw_io_multimodal.settings import Multimodal
from corefw_io_multimodal.sources import Sources
from plugins.io_multimodal.tests.media_host import content, endless, hosting, redirect, status, trickle


def read(url: str, memory: Memory | None = None, **settings: object) -> bytes:
    with (memory or Memory(10**8)).share() as share:
        return Sources(Multimodal(**settings)).read(url, share, param="here").content  # type: ignore[arg-type]


def refusal(url: str, **settings: object) -> RequestError:
    with pytest.raises(RequestError) as raised:
        read(url, **settings)
    assert raised.value.status == 400
    assert raised.value.param == "here"
    assert not url or url not in raised.value.message
    return raised.value


def test_a_file_comes_whole_from_a_host_of_ones_own_and_its_memory_is_given_back() -> None:
    body = bytes(range(256)) * 1000
    memory = Memory(10**6)
    with hosting({"/a?b=c": content(body)}) as host:
        assert read(f"{host.url}/a?b=c", memory, private_hosts=[host.name]) == body
        assert host.hits == ["/a?b=c"]
    assert memory.num_taken == 0


def test_nothing_is_fetched_unless_the_operator_says_so() -> None:
    with hosting({"/": content(b"x")}) as host:
        assert "send them as a data URL" in refusal(host.url).message
        assert refusal(host.url, allowed_media_domains=["example.com"]).code == "media_host_not_allowed"
        assert host.hits == []


def test_an_allowed_host_must_still_be_public() -> None:
    with hosting({"/": content(b"x")}) as host:
        error = refusal(host.url, allowed_media_domains=[host.name])
        assert "isn't public" in error.message
        assert host.hits == []


def test_a_name_that_leads_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolver(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        public, inside = ("93.184.216.34", port), ("127.0.0.1", port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in (public, inside)]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    assert "isn't public" in refusal("http://rebinding.example/x", allowed_media_domains=["*"]).message
    assert asked == ["rebinding.example"]


_INSIDE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "0.0.0.0",
    "10.0.0.8",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "224.0.0.1",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "localhost",
    "localhost.",
]


@pytest.mark.parametrize("host", _INSIDE)
def test_addresses_inside_are_refused_however_they_are_written(host: str) -> None:
    error = refusal(f"http://{host}/latest/meta-data", allowed_media_domains=["*"])
    assert "isn't public" in error.message or "isn't known" in error.message or "can be fetched" in error.message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com/x",
        "gopher://example.com/",
        "javascript:alert(1)",
        "http://",
        "http:///x",
        "//example.com/x",
        "example.com/x",
        "http://user:pass@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com/a b",
        "http://example.com/\r\nHost: inside",
        "http://exämple.com/",
        "http://example.com:99999/",
        "http://[::1/",
        "http://example.com/" + "x" * 9000,
    ],
)
def test_what_is_no_url_to_fetch_is_refused(url: str) -> None:
    assert refusal(url, allowed_media_domains=["*"]).code == "media_url_invalid"


def test_domains_are_compared_by_name_and_port() -> None:
    hosts = AllowedHosts(["example.com", "*.images.org", "other.net:8443"])

    def allows(url: str) -> bool:
        try:
            return bool(hosts.target(url, "here"))
        except RequestError:
            return False

    for url in ("http://example.com/", "https://EXAMPLE.com./", "https://a.b.images.org/", "https://other.net:8443/"):
        assert allows(url), url
    for url in (
        "http://example.com:8080/",
        "http://www.example.com/",
        "http://example.com.evil.net/",
        "http://images.org/",
        "http://evilimages.org/",
        "https://other.net/",
    ):
        assert not allows(url), url


def test_each_redirect_is_checked_and_the_place_it_leads_to_never_asked() -> None:
    with hosting({"/secret": content(b"x")}) as inside:
        steps = {
            "/1": redirect("/2"),
            "/2": redirect(f"{inside.url}/secret"),
            "/file": redirect("file:///etc/passwd"),
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
            "/nowhere": redirect(""),
            "/round": redirect("/round"),
            "/good": redirect("/end"),
            "/end": content(b"end"),
        }
        with hosting(steps) as host:
            own = {"private_hosts": [host.name]}
            assert read(f"{host.url}/good", **own) == b"end"
            for path in ("/1", "/file", "/metadata", "/nowhere", "/round"):
                refusal(host.url + path, **own)
            assert host.hits.count("/round") == 4
            assert "more than 0 times" in refusal(f"{host.url}/good", max_redirects=0, **own).message
        assert inside.hits == []


def test_too_much_is_refused_with_and_without_a_length() -> None:
    answers = {"/endless": endless, "/long": content(bytes(200_001)), "/lies": content(b"ab", Content_Length="3")}
    with hosting(answers) as host:
        limits = {"private_hosts": [host.name], "max_item_bytes": 200_000}
        assert "more than 200000 bytes" in refusal(f"{host.url}/endless", **limits).message
        assert "more than 200000 bytes" in refusal(f"{host.url}/long", **limits).message
        assert refusal(f"{host.url}/lies", **limits).code == "media_not_fetched"
        memory = Memory(100_000)
        with pytest.raises(CapacityError):
            read(f"{host.url}/endless", memory, **limits)
        assert memory.num_taken == 0


def test_a_trickle_ends_with_the_time_for_all_of_it() -> None:
    with hosting({"/trickle": trickle, "/to": redirect("/trickle")}) as host:
        begun_s = time.monotonic()
        error = refusal(f"{host.url}/to", private_hosts=[host.name], fetch_timeout_s=0.4)
        assert "longer than 0.4 s" in error.message
        assert time.monotonic() - begun_s < 3


def test_a_host_that_never_answers_ends_with_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        for scheme in ("http", "https"):
            error = refusal(f"{scheme}://{name}/", private_hosts=[name], fetch_timeout_s=0.3)
            assert "longer than 0.3 s" in error.message


def test_a_closed_port_an_error_and_compression_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        name = f"127.0.0.1:{closed.getsockname()[1]}"
    assert "can't be reached" in refusal(f"http://{name}/", private_hosts=[name]).message
    with hosting({"/packed": content(b"x", Content_Encoding="gzip"), "/500": status(500)}) as host:
        assert "compressed" in refusal(f"{host.url}/packed", private_hosts=[host.name]).message
        assert "status 500" in refusal(f"{host.url}/500", private_hosts=[host.name]).message
        assert "status 404" in refusal(f"{host.url}/none", private_hosts=[host.name]).message
