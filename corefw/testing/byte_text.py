"""A tokenizer and a renderer without files: token ids are the bytes of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corefw.errors import RequestError
from corefw.frontend.renderer import InsertedChat
from corefw.frontend.template_pool import Lane
from corefw.frontend.tokenizer.base import Tokenizer

__all__ = ["BYTE_EOS_ID", "BYTE_VOCAB_SIZE", "ByteRenderer", "ByteTokenizer"]

BYTE_EOS_ID = 256
BYTE_VOCAB_SIZE = 257


class ByteTokenizer(Tokenizer):
    """Ids are bytes; one more ends a text."""

    def __init__(self) -> None:
        super().__init__(
            vocab_size=BYTE_VOCAB_SIZE,
            bos_id=None,
            eos_ids=(BYTE_EOS_ID,),
            special_texts={"<end>": BYTE_EOS_ID},
            adds_bos=False,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        del add_special_tokens, parse_special
        return list(text.encode())

    def _make_token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == BYTE_EOS_ID else bytes([token_id])


class ByteRenderer:
    """Stands where ``Renderer`` stands: texts are their bytes; a chat is one line a message."""

    tokenizer = ByteTokenizer()
    eos_ids = (BYTE_EOS_ID,)
    chat_template: str | None = None

    def render_text(self, text: str, *, param: str) -> list[int]:
        if not text:
            raise RequestError(f"{param} must not be empty", param=param)
        return self.tokenizer.encode(text)

    def render_ids(self, ids: Sequence[int], *, param: str) -> list[int]:
        if not ids:
            raise RequestError(f"{param} must not be empty", param=param)
        return list(ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        lane: Lane = "any",
    ) -> list[int]:
        del template_kwargs, lane  # this one is always quick
        lines = [f"{message['role']}: {_text(message['content'])}\n" for message in messages]
        if continue_final_message:
            lines[-1] = lines[-1].removesuffix("\n")
        return self.tokenizer.encode("".join(lines) + ("assistant: " if add_generation_prompt else ""))

    def render_chat_with(
        self,
        messages: Sequence[Mapping[str, Any]],
        insertions: Mapping[str, Sequence[int]],
        **options: Any,
    ) -> InsertedChat:
        """With ids in the place of marks."""
        text = bytes(self.render_chat(messages, **options)).decode()
        chat = InsertedChat([], {})
        for piece in re.split(f"({'|'.join(map(re.escape, insertions))})", text) if insertions else [text]:
            if piece in insertions:
                chat.offsets[piece] = len(chat.ids)
            chat.ids.extend(insertions.get(piece) or self.tokenizer.encode(piece))
        return chat


def _text(content: str | Sequence[str | Mapping[str, str]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part["text"] for part in content)
