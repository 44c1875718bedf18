"""Images in many formats, whole and damaged."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image

__all__ = ["bomb_png", "data_url", "image_file"]


def image_file(colour: Any = "red", size: tuple[int, int] = (16, 12), form: str = "PNG", mode: str = "RGB") -> bytes:
    """A file of one colour."""
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, form)
    return file.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    """The file as a URL."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def bomb_png(width: int, height: int) -> bytes:
    """A small file that says it is a large image, and is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    packed = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
