"""The raw bytes that a token stands for, by the kind of vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SPACE_MARK", "ByteRule", "byte_fallback_value", "byte_level_bytes", "rule_of_decoder", "spaced_bytes"]

SPACE_MARK = "\u2581"  # how SentencePiece writes a blank
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 stands for itself, every other byte for 256, 257 and so on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token written in the byte-level alphabet; one that leaves the alphabet is text as it stands."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def byte_fallback_value(token: str) -> int | None:
    """The byte of a token such as ``<0x0A>``, or None."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


def spaced_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: a byte, or text with marks for blanks."""
    value = byte_fallback_value(token)
    return bytes([value]) if value is not None else token.replace(SPACE_MARK, " ").encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How a vocabulary's text comes from its tokens.

    Attributes:
        token_bytes: of a token of the model.
        added_bytes: of an added token.
        strips_blank: the first blank of a text was added by the tokenizer and isn't part of it.
    """

    token_bytes: Callable[[str], bytes]
    added_bytes: Callable[[str], bytes]
    strips_blank: bool = False


def _plain(token: str) -> bytes:
    return token.encode("utf-8", "replace")


def rule_of_decoder(decoder: Mapping[str, Any] | None) -> ByteRule | None:
    """The rule that equals a ``tokenizer.json``'s decoder; None when tokens have no bytes of their own there."""
    if decoder is None:
        return None
    if decoder["type"] == "ByteLevel":
        return ByteRule(byte_level_bytes, _plain)
    if decoder["type"] == "Metaspace" and decoder.get("replacement") == SPACE_MARK:
        strips = decoder.get("prepend_scheme", "always") != "never"
        return ByteRule(lambda token: _plain(token.replace(SPACE_MARK, " ")), _plain, strips)
    if decoder["type"] != "Sequence":
        return None
    parts = decoder["decoders"]
    if [part["type"] for part in parts] == ["ByteLevel"]:
        return ByteRule(byte_level_bytes, _plain)
    return _rule_of_sequence(parts)


def _rule_of_sequence(parts: list[Mapping[str, Any]]) -> ByteRule | None:
    """SentencePiece as converted: Replace, ByteFallback, Fuse and perhaps Strip of one blank at the start."""
    kinds = [part["type"] for part in parts]
    if kinds not in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return None
    if parts[0].get("pattern") != {"String": SPACE_MARK} or parts[0].get("content") != " ":
        return None
    strip = parts[3] if len(parts) == 4 else None
    if strip is not None and (strip.get("content"), strip.get("start"), strip.get("stop")) != (" ", 1, 0):
        return None
    return ByteRule(spaced_bytes, spaced_bytes, strip is not None)
