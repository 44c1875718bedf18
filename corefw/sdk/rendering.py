"""From texts and chats to token ids, and back."""

from __future__ import annotations

from corefw.frontend.content_shield import random_mark
from corefw.frontend.renderer import InsertedChat, Renderer
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.load import load_tokenizer

__all__ = ["InsertedChat", "Renderer", "Tokenizer", "load_tokenizer", "random_mark"]
