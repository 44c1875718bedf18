"""A tokenizer that runs in the `tokenizers` library: any tokenizer.json, and GGUF files with byte-level merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tokenizers

from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.token_bytes import rule_of_decoder

if TYPE_CHECKING:
    from tokenizers import AddedToken

__all__ = ["BackedTokenizer", "added_tokens"]


def added_tokens(backend: tokenizers.Tokenizer) -> dict[int, AddedToken]:
    """Added tokens by id."""
    found: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    return found


def _plain_twin(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, to which control tokens are text. It shares the model, so it costs nothing to have both.

    The library has one switch for this on the whole object; two objects need no lock.
    """
    twin = tokenizers.Tokenizer(backend.model)
    twin.normalizer = backend.normalizer
    twin.pre_tokenizer = backend.pre_tokenizer
    twin.post_processor = backend.post_processor
    for _, token in sorted(added_tokens(backend).items()):
        (twin.add_special_tokens if token.special else twin.add_tokens)([token])
    twin.encode_special_tokens = True
    return twin


class BackedTokenizer(Tokenizer):
    """Wraps a ``tokenizers.Tokenizer``.

    Args:
        backend: not used by anybody else from now on.
        bos_id, eos_ids: end and begin tokens.
        adds_bos, adds_eos: put around the text by this class; None leaves both to the backend's post-processor.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None,
        eos_ids: tuple[int, ...],
        adds_bos: bool | None = None,
        adds_eos: bool = False,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        added = added_tokens(backend)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._backend = backend
        self._plain = _plain_twin(backend)
        self._rule = rule_of_decoder(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
        self.joins_bytes = self._rule is not None
        self.strips_blank = self._rule is not None and self._rule.strips_blank
        self.left_stripping_ids = frozenset(i for i, token in added.items() if token.special and token.lstrip)
        self.right_stripping_ids = frozenset(i for i, token in added.items() if token.special and token.rstrip)
        self._post_processes = adds_bos is None
        self._prefix = [bos_id] if adds_bos and bos_id is not None else []
        self._suffix = [eos_ids[0]] if adds_eos and eos_ids else []
        if adds_bos is None:
            adds_bos = bos_id is not None and backend.encode("", add_special_tokens=True).ids[:1] == [bos_id]
        super().__init__(
            vocab_size=max(backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1),
            bos_id=bos_id,
            eos_ids=eos_ids,
            special_texts={token.content: token_id for token_id, token in added.items() if token.special},
            adds_bos=adds_bos,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        backend = self._backend if parse_special else self._plain
        add = add_special_tokens and self._post_processes
        ids: list[int] = backend.encode(text, add_special_tokens=add).ids
        if add_special_tokens and not self._post_processes:
            return [*self._prefix, *ids, *self._suffix]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        if self.joins_bytes:
            return super().decode(ids, skip_special_tokens=skip_special_tokens, continuation=continuation)
        known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def _make_token_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return self._rule.added_bytes(added) if self._rule else added.encode("utf-8", "replace")
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._rule is None:
            return str(self._backend.decode([token_id], skip_special_tokens=False)).encode("utf-8", "replace")
        return self._rule.token_bytes(token)
