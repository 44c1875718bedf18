"""Begin and end tokens of a GGUF file."""

from __future__ import annotations

from corefw.models.loading.gguf_file import GGUFFile
from corefw.models.loading.gguf_values import GGUFValues

__all__ = ["begin_token", "end_tokens"]

_PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TOKENS_KEY = f"{_PREFIX}tokens"
# Many files name only the end of text; a chat model then ends its turn with one of these.
_END_OF_TURN_TEXTS = frozenset({"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>"})


def end_tokens(file: GGUFFile, vocab_size: int) -> tuple[int, ...]:
    """Ids that end an answer: those the file names, and the end of a turn found by its text when it names none."""
    values = GGUFValues(file, _PREFIX)
    ids = [token_id for key in _END_KEYS if (token_id := _token_id(values, key, vocab_size)) is not None]
    if f"{_PREFIX}eot_token_id" not in file.metadata:
        ids += _end_of_turn_ids(file, vocab_size)
    return tuple(dict.fromkeys(ids))


def begin_token(file: GGUFFile, vocab_size: int) -> int | None:
    """Id of the begin token, if there is one."""
    return _token_id(GGUFValues(file, _PREFIX), "bos_token_id", vocab_size)


def _token_id(values: GGUFValues, key: str, vocab_size: int) -> int | None:
    token_id = values.optional_integer(key, low=0)
    if token_id is not None and token_id >= vocab_size:
        values.fail(key, f"is {token_id}, but the vocabulary has {vocab_size} tokens")
    return token_id


def _end_of_turn_ids(file: GGUFFile, vocab_size: int) -> list[int]:
    tokens = file.metadata.get(_TOKENS_KEY)
    if not isinstance(tokens, list):
        return []
    return [n for n, text in enumerate(tokens[:vocab_size]) if isinstance(text, str) and text in _END_OF_TURN_TEXTS]
