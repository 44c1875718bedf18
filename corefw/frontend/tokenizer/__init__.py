"""Text to token ids and back, from a tokenizer.json, a model directory or a GGUF file."""

from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.load import load_tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
