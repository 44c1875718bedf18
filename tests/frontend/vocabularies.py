"""Small vocabularies, as GGUF metadata and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf

from corefw.config.model_info import ModelFiles, ModelInfo
from corefw.frontend.tokenizer.base import Tokenizer
from corefw.frontend.tokenizer.gguf_vocabulary import tokenizer_from_gguf

DATA = Path(__file__).parent / "tokenizer" / "data"
BOS, END, TURN_START = 1, 2, 0
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTROL = ["<|im_start|>", "<s>", "<|im_end|>", "</s>"]
_USER_DEFINED = ["<think>", "\n\n\n"]
_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "i n", "< |", "| >", "e n", "en d"]


def byte_alphabet() -> list[str]:
    """The byte-level stand-ins of the bytes 0 to 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """256 bytes, some merges, control and user-defined tokens; ``changes`` by key without the prefix."""
    merged = [merge.replace(" ", "") for merge in _MERGES]
    tokens = [*_CONTROL, *_USER_DEFINED, *byte_alphabet(), *merged]
    types = [3] * len(_CONTROL) + [4] * len(_USER_DEFINED) + [1] * (256 + len(merged))
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": _MERGES,
        "bos_token_id": BOS,
        "eos_token_id": END,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def byte_level(**changes: Any) -> Tokenizer:
    """The tokenizer of ``byte_level_metadata``."""
    return tokenizer_from_gguf(byte_level_metadata(**changes))


def sentence_piece_metadata(**changes: Any) -> dict[str, Any]:
    """The recorded SentencePiece vocabulary."""
    metadata: dict[str, Any] = json.loads((DATA / "small_spm.json").read_text(encoding="utf-8"))
    return {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


def sentence_piece(**changes: Any) -> Tokenizer:
    """The tokenizer of ``sentence_piece_metadata``."""
    return tokenizer_from_gguf(sentence_piece_metadata(**changes))


def write_gguf(path: Path, metadata: dict[str, Any] | None = None, template: str | None = CHAT_TEMPLATE) -> Path:
    """A GGUF file that has a vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (byte_level_metadata() if metadata is None else metadata).items():
        add = {list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](key, value)
    if template is not None:
        writer.add_string("tokenizer.chat_template", template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def model_info(file: Path, *, vocab_size: int = 512, max_position: int = 256) -> ModelInfo:
    """What a loader would say of that file; a directory has no weights here."""
    weights = () if file.is_dir() else (str(file),)
    root = file if file.is_dir() else file.parent
    return ModelInfo(
        files=ModelFiles(reference=str(file), source="test", root=str(root), weights=weights),
        loader="gguf",
        architecture="LlamaForCausalLM",
        hf_config={"num_hidden_layers": 1},
        checkpoint_dtype="float32",
        max_position=max_position,
        vocab_size=vocab_size,
        eos_ids=(END,),
    )
