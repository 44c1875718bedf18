"""A hub on this machine: just enough of its HTTP interface to fetch a snapshot from."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve_hub(name: str, contents: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve one repository; gives its address and the paths that were fetched, as they come."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(send_body=False)

        def do_GET(self) -> None:
            fetched.append(self.path)
            self._answer(send_body=True)

        def _answer(self, *, send_body: bool) -> None:
            resolved = f"/{name}/resolve/{COMMIT}/"
            path = self.path.split("?")[0]
            if path == f"/api/models/{name}/revision/main":
                siblings = [{"rfilename": file} for file in contents]
                self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), send_body)
            elif path == f"/api/models/{name}/tree/{COMMIT}":
                tree = [{"type": "file", "path": file, "size": len(data), "oid": ""} for file, data in contents.items()]
                self._send(200, json.dumps(tree).encode(), send_body)
            elif path.startswith(resolved) and path.removeprefix(resolved) in contents:
                self._send(200, contents[path.removeprefix(resolved)], send_body)
            else:
                self._send(404, b"{}", send_body, {"X-Error-Code": "RepoNotFound"})

        def _send(self, status: int, body: bytes, send_body: bool, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
