"""Token types of GGUF files."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["TokenType"]


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``: control and unknown tokens are special, user-defined ones are only added."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
