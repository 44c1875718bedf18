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

_DBRX = PreTokenizer((f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",))
# Words end where an upper-case letter follows a lower-case one.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{word}(?:{_CONTRACTIONS})?" for word in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*")
)
_GPT_4O = PreTokenizer((rf"{_CASED_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",))
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{D7FF}]+", r"\p{N}"))
_DEEPSEEK_V3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        r"[一-龥\x{3040}-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "dbrx": _DBRX,
    "smaug-bpe": _DBRX,
    "gpt-4o": _GPT_4O,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_V3,
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
