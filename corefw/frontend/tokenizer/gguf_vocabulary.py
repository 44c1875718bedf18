"""Tokenizers from the metadata of a GGUF file; llama.cpp is the reference for what the keys mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from corefw.errors import ConfigError, ModelFormatError
from corefw.frontend.tokenizer.backed import BackedTokenizer
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.disk_cache import TokenizerCache
from corefw.frontend.tokenizer.pre_tokenizers import PreTokenizer, pre_tokenizer
from corefw.frontend.tokenizer.spm import SentencePieceTokenizer
from corefw.frontend.tokenizer.token_types import TokenType

__all__ = ["tokenizer_from_gguf"]

_KEY = "tokenizer.ggml."
# A chat model's end of turn, where the file names no id for it.
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_PHI3_KEEPING = frozenset({"<unk>", "<s>", "<|endoftext|>"})

Metadata = Mapping[str, Any]


def tokenizer_from_gguf(metadata: Metadata, cache: TokenizerCache | None = None) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Args:
        metadata: by key; arrays as lists.
        cache: where a built byte-level tokenizer is kept.

    Raises:
        ModelFormatError: a key is missing or contradicts another.
        ConfigError: the vocabulary's kind or pre-tokenizer isn't known; names the remedy.
    """
    kind = metadata.get(f"{_KEY}model")
    if kind == "gpt2":
        return _byte_level(metadata, cache)
    if kind == "llama":
        return _sentence_piece(metadata)
    raise ConfigError(
        f"the model's vocabulary is of the kind {str(kind)[:40]!r}; known are gpt2 and llama. "
        "Name the model's tokenizer.json with --tokenizer"
    )


def _byte_level(metadata: Metadata, cache: TokenizerCache | None) -> Tokenizer:
    rules = pre_tokenizer(str(metadata.get(f"{_KEY}pre", "default")))
    backend = cache.load() if cache else None
    if backend is None:
        backend = _build_byte_level(metadata, rules)
        if cache:
            cache.store(backend)
    bos_id = _token_id(metadata, "bos_token_id", backend.get_vocab_size())
    return BackedTokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=_eos_ids(metadata, backend.get_vocab_size(), backend.token_to_id),
        adds_bos=_switch(metadata, "add_bos_token", rules.adds_bos) and bos_id is not None,
        adds_eos=_switch(metadata, "add_eos_token", False),
    )


def _build_byte_level(metadata: Metadata, rules: PreTokenizer) -> tokenizers.Tokenizer:
    tokens, types = _tokens(metadata), _types(metadata)
    merges = []
    for merge in _list(metadata, "merges"):
        left, blank, right = merge[1:].partition(" ")  # a token may begin with a blank, never contain one
        if not blank:
            raise ModelFormatError(f"{_KEY}merges: {merge[:40]!r} isn't a pair; the file is damaged, fetch it again")
        merges.append((merge[0] + left, right))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rules.ignore_merges)
    except Exception as error:  # the library raises bare Exception
        raise ModelFormatError(
            f"{_KEY}merges don't fit the tokens ({str(error)[:200]}); fetch the file again"
        ) from error
    backend = tokenizers.Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*rules.splits(), byte_level])
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, types)
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    special, added = [], []
    for token, kind in zip(tokens, types, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            added.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(added)


def _sentence_piece(metadata: Metadata) -> Tokenizer:
    tokens, types = _tokens(metadata), _types(metadata)
    scores = metadata.get(f"{_KEY}scores")
    if scores is None:
        scores = [0.0] * len(tokens)
    elif len(scores) != len(tokens):
        raise ModelFormatError(f"{_KEY}scores has {len(scores)} entries for {len(tokens)} tokens; fetch the file again")
    ids = {token: i for i, token in enumerate(tokens)}
    bos_id = _token_id(metadata, "bos_token_id", len(tokens), 1)
    return SentencePieceTokenizer(
        tokens,
        scores,
        types,
        bos_id=bos_id,
        eos_ids=_eos_ids(metadata, len(tokens), ids.get, 2),
        unknown_id=_token_id(metadata, "unknown_token_id", len(tokens), 0),
        adds_bos=_switch(metadata, "add_bos_token", True) and bos_id is not None,
        adds_eos=_switch(metadata, "add_eos_token", False),
        adds_blank=_switch(metadata, "add_space_prefix", True),
        right_stripping_ids=_right_stripping_ids(metadata, tokens, types),
    )


def _right_stripping_ids(metadata: Metadata, tokens: list[str], types: list[int]) -> frozenset[int]:
    """Phi-3's added tokens swallow the blanks after them, but for three; the file doesn't say so, only the family."""
    if metadata.get("general.architecture") != "phi3":
        return frozenset()
    added = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    return frozenset(
        i
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in added and token not in _PHI3_KEEPING
    )


def _list(metadata: Metadata, name: str) -> list[Any]:
    value = metadata.get(_KEY + name)
    if not isinstance(value, list):
        raise ModelFormatError(f"the file has no list {_KEY}{name}; name the model's tokenizer.json with --tokenizer")
    return value


def _tokens(metadata: Metadata) -> list[str]:
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(_list(metadata, "tokens"))]
    if len(set(tokens)) != len(tokens):
        raise ModelFormatError(f"{_KEY}tokens has a token twice; fetch the file again or name another with --tokenizer")
    return tokens


def _types(metadata: Metadata) -> list[int]:
    tokens = _list(metadata, "tokens")
    types = metadata.get(f"{_KEY}token_type")
    if types is None:
        return [int(TokenType.NORMAL)] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelFormatError(f"{_KEY}token_type doesn't have one entry a token; fetch the file again")
    return types


def _token_id(metadata: Metadata, name: str, vocab_size: int, default: int | None = None) -> int | None:
    """A special token's id; one outside the vocabulary is as good as none."""
    value = metadata.get(_KEY + name, default)
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
    return value if valid else None


def _switch(metadata: Metadata, name: str, default: bool) -> bool:
    return bool(metadata.get(_KEY + name, default))


def _eos_ids(metadata: Metadata, vocab_size: int, id_of: Any, default: int | None = None) -> tuple[int, ...]:
    """End of sequence, of turn and of message, without repetition."""
    names = (("eos_token_id", default), ("eot_token_id", None), ("eom_token_id", None))
    found = [_token_id(metadata, name, vocab_size, fallback) for name, fallback in names]
    if found[1] is None:
        found += [next((i for text in _END_OF_TURN if (i := id_of(text)) is not None), None)]
    return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))
