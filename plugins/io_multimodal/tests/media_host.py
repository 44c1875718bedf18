"""HTTP servers on loopback that serve, redirect, dawdle, and count who came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Answer", "MediaHost", "hosting"]

Answer = Callable[[BaseHTTPRequestHandler], None]


class MediaHost:
    """A running server; ``hits`` are the paths that were asked for."""

    def __init__(self, server: ThreadingHTTPServer, hits: list[str]) -> None:
        self.hits = hits
        self.name = f"127.0.0.1:{server.server_address[1]}"
        self.url = f"http://{self.name}"


@contextmanager
def hosting(answers: dict[str, Answer]) -> Iterator[MediaHost]:
    """Serve for the length of a block; what isn't among ``answers`` is a 404."""
    hits: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hits.append(self.path)
            answers.get(self.path, status(404))(self)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda request, address: None  # type: ignore[method-assign]  # clients go early on purpose
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield MediaHost(server, hits)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def content(body: bytes, media_type: str = "image/png", **headers: str) -> Answer:
    """A whole file."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        lengths = (
            {} if "Content_Length" in headers or "Transfer_Encoding" in headers else {"Content-Length": str(len(body))}
        )
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        for name, value in {"Content-Type": media_type, **lengths, **named}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def status(code: int) -> Answer:
    """Nothing but a status."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def redirect(url: str) -> Answer:
    """To another place."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, so that no single wait is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Chunks without an end, and without a length."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
