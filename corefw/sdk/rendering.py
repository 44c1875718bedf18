"""From texts and chats to token ids, and back."""

from __future__ import annotations

from corefw.frontend.renderer import Renderer
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.load import load_tokenizer

__all__ = ["Renderer", "Tokenizer", "load_tokenizer"]
