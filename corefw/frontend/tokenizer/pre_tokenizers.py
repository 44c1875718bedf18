"""How byte-level vocabularies split text before merging, by the name that GGUF files give it.

The names and rules are llama.cpp's, which chose each so that it equals the model's own tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from corefw.errors import ConfigError

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Contractions by letter classes, not case-insensitively: (?i:'s) would also match a long s.
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splitting rules, applied one after the other to every piece.

    Attributes:
        patterns: regular expressions; what one matches is a piece, and so is what lies between.
        ignore_merges: a piece that is a token is taken whole, whatever the merges say.
        adds_bos: a begin token is wanted unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False

    def splits(self) -> list[Split]:
        """The rules as steps of the ``tokenizers`` library."""
        return [Split(Regex(pattern), "isolated") for pattern in self.patterns]


_LLAMA_BPE = PreTokenizer((f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",), ignore_merges=True, adds_bos=True)
_QWEN2 = PreTokenizer((f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}",))

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rules of that name.

    Raises:
        ConfigError: the name is unknown; lists the known ones.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ConfigError(
            f"the model's pre-tokenizer {name[:40]!r} is unknown; known are {', '.join(PRE_TOKENIZERS)}. "
            "Name the model's tokenizer.json with --tokenizer"
        )
    return found
