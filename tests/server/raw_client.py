"""A client that can go in the middle of everything."""

from __future__ import annotations

import json
import socket
from typing import Any


def send(server: Any, body: dict[str, Any], path: str = "completions") -> socket.socket:
    """A connection on which a request was sent; ``server`` has a port."""
    content = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(head.encode() + b"\r\n\r\n" + content)
    return connection
