"""Ids equal those of llama.cpp, recorded by scripts/record_tokenizer_ids.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.gguf_vocabulary import tokenizer_from_gguf
from corefw.models.loading.gguf_file import GGUFFile
from tests.frontend.vocabularies import DATA, sentence_piece, sentence_piece_metadata

PRE_TOKENIZERS = ["smollm", "gpt-2", "default", "llama-bpe", "qwen2", "dbrx", "gpt-4o", "deepseek-coder", "deepseek-v3"]


def recorded(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    assert len(cases) > 80
    return cases


def differences(tokenizer: Tokenizer, cases: list[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    """Every (text, whether control tokens were parsed, our ids) that isn't as recorded."""
    return [
        (case["text"], kind, ids)
        for case in cases
        for kind in ("plain", "special")
        if (ids := tokenizer.encode(case["text"], add_special_tokens=False, parse_special=kind == "special"))
        != case[kind]
    ]


def vocabulary(files: ModelFiles) -> dict[str, Any]:
    return dict(GGUFFile(files.weights[0]).metadata)


@pytest.mark.model
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_ids_equal_the_reference_under_every_pre_tokenizer(demo_info: ModelInfo, pre: str) -> None:
    tokenizer = tokenizer_from_gguf({**vocabulary(demo_info.files), "tokenizer.ggml.pre": pre})
    assert differences(tokenizer, recorded(f"demo_{pre}")) == []


def test_sentence_piece_ids_equal_the_reference_with_ties_missing_parts_and_bytes() -> None:
    assert differences(sentence_piece(), recorded("small_spm_ids")) == []


def test_phi_3_ids_equal_the_reference_where_tokens_swallow_blanks() -> None:
    small = sentence_piece_metadata()
    more = {"tokens": ["<|endoftext|>", "<|end|>", "<|user|>"], "scores": [-1000.0] * 3, "token_type": [3] * 3}
    longer = {f"tokenizer.ggml.{key}": small[f"tokenizer.ggml.{key}"] + values for key, values in more.items()}
    tokenizer = tokenizer_from_gguf({**small, **longer, "general.architecture": "phi3"})
    assert differences(tokenizer, recorded("phi3_spm_ids")) == []


@pytest.mark.slow
@pytest.mark.model
def test_gemma_ids_equal_the_reference(gemma_files: ModelFiles) -> None:
    # The reference treats "</s>" as a control token whatever the file says; the file says user-defined.
    cases = [case for case in recorded("gemma") if "</s>" not in case["text"]]
    assert differences(tokenizer_from_gguf(vocabulary(gemma_files)), cases) == []


@pytest.mark.model
def test_decoding_recorded_ids_gives_the_text_back(demo_info: ModelInfo) -> None:
    tokenizer = tokenizer_from_gguf(vocabulary(demo_info.files))
    for case in recorded("demo_smollm"):
        assert tokenizer.decode(case["plain"]) == case["text"]
        assert tokenizer.decode(case["special"], skip_special_tokens=False) == case["text"]
