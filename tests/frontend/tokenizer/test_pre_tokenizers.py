from __future__ import annotations

import json

import pytest
import regex
from tokenizers.pre_tokenizers import Sequence

from corefw.errors import ConfigError
from corefw.frontend.tokenizer.pre_tokenizers import pre_tokenizer
from tests.frontend.vocabularies import DATA

# As published with the models, in the syntax of the regex module, which shares no code with the one under test.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED = {"gpt-2": GPT2, "llama-bpe": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}


def hard_texts() -> list[str]:
    return [case["text"] for case in json.loads((DATA / "demo_smollm.json").read_text(encoding="utf-8"))]


def pieces(name: str, text: str) -> list[str]:
    return [piece for piece, _ in Sequence(pre_tokenizer(name).splits()).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_pieces_are_those_of_the_published_expression(name: str) -> None:
    # Python ignores case by Unicode's rules and takes a long s for an s; the models' own tokenizers don't.
    texts = [text for text in hard_texts() if "ſ" not in text]
    assert len(texts) > 80
    for text in texts:
        assert pieces(name, text) == regex.findall(PUBLISHED[name], text), text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["1234", " 56"]),
        ("smollm", ["1", "2", "3", "4", " ", "5", "6"]),
        ("llama-bpe", ["123", "4", " ", "56"]),
        ("qwen2", ["1", "2", "3", "4", " ", "5", "6"]),
        ("default", ["123", "4", " ", "56"]),
    ],
)
def test_digits_are_cut_as_the_name_says(name: str, expected: list[str]) -> None:
    assert pieces(name, "1234 56") == expected


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'tekken' is unknown.*smollm.*--tokenizer"):
        pre_tokenizer("tekken")
