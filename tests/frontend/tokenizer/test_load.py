from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.config.model_info import ModelInfo
from corefw.errors import ConfigError
from corefw.frontend.tokenizer import load_tokenizer
from tests.frontend.vocabularies import END, byte_level_metadata, model_info, write_gguf

TEXT = "hello world <|im_end|>\n\n\n日本 <think>"


@pytest.fixture
def info(tmp_path: Path, cache_folder: Path) -> ModelInfo:
    return model_info(write_gguf(tmp_path / "small.gguf"))


def load(info: ModelInfo, *, tokenizer: str | None = None, cached: bool = True) -> list[int]:
    loaded = load_tokenizer(info, ModelConfig(tokenizer=tokenizer), FrontendConfig(tokenizer_cache=cached))
    return loaded.encode(TEXT, parse_special=True)


def cached_files(cache_folder: Path) -> list[Path]:
    return sorted((cache_folder / "tokenizers").glob("*"))


def test_a_built_tokenizer_is_kept_and_gives_the_same_ids(info: ModelInfo, cache_folder: Path) -> None:
    first = load(info)
    (file,) = cached_files(cache_folder)
    assert file.suffix == ".json"
    before = file.stat().st_mtime_ns
    assert load(info) == first == load(info, cached=False)
    assert file.stat().st_mtime_ns == before


def test_the_stored_tokenizer_is_what_is_used(info: ModelInfo, cache_folder: Path) -> None:
    load(info)
    (file,) = cached_files(cache_folder)
    stored = tokenizers.Tokenizer.from_file(str(file))
    stored.add_special_tokens([AddedToken("日本", special=True)])
    file.write_text(stored.to_str(), encoding="utf-8")
    assert len(load(info)) < len(load(info, cached=False))


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_damaged_cache_is_built_again(info: ModelInfo, cache_folder: Path, damage: bytes) -> None:
    first = load(info)
    (file,) = cached_files(cache_folder)
    file.write_bytes(damage)
    assert load(info) == first
    tokenizers.Tokenizer.from_file(str(file))
    assert cached_files(cache_folder) == [file]


def test_a_cache_that_cant_be_written_is_survived(info: ModelInfo, cache_folder: Path) -> None:
    cache_folder.write_text("a file where the folder should be", encoding="utf-8")
    assert load(info) == load(info, cached=False)


def test_nothing_is_kept_when_the_cache_is_off(info: ModelInfo, cache_folder: Path) -> None:
    load(info, cached=False)
    assert not cache_folder.exists()


def test_another_vocabulary_is_another_entry(info: ModelInfo, tmp_path: Path, cache_folder: Path) -> None:
    load(info)
    load(model_info(write_gguf(tmp_path / "other.gguf", byte_level_metadata(pre="smollm"))))
    assert len(cached_files(cache_folder)) == 2


@pytest.mark.model
def test_the_demo_tokenizer_loads_fast_the_second_time(demo_info: ModelInfo, cache_folder: Path) -> None:
    load(demo_info)
    durations = []
    for _ in range(3):
        begin = time.process_time()
        load(demo_info)
        durations.append(time.process_time() - begin)
    # The promise is 0.15 s; limits on time are asserted at three times that, and other processes don't count.
    assert min(durations) < 0.45


def byte_level_backend() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "<|im_end|>"])
    backend.add_tokens([AddedToken("日", special=False)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return backend


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    byte_level_backend().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_a_model_directory_has_its_tokenizer_and_special_ids(directory: Path) -> None:
    tokenizer = load_tokenizer(model_info(directory), ModelConfig(), FrontendConfig())
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (256, (257,), True)
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("a<|im_end|>", parse_special=True)[::2] == [256, 257]
    assert 257 not in tokenizer.encode("a<|im_end|>")
    assert tokenizer.decode(tokenizer.encode("aé日<|im_end|>")) == "aé日<|im_end|>"


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_named_tokenizer_replaces_the_models_own(info: ModelInfo, directory: Path, name: str) -> None:
    named = str(directory / name) if name else str(directory)
    tokenizer = load_tokenizer(info, ModelConfig(tokenizer=named), FrontendConfig())
    assert tokenizer.vocab_size == 259
    assert tokenizer.eos_ids == (257,)


def test_special_ids_come_from_the_model_where_a_lone_file_names_none(info: ModelInfo, tmp_path: Path) -> None:
    file = tmp_path / "lone" / "tokenizer.json"
    file.parent.mkdir()
    byte_level_backend().save(str(file))
    assert load_tokenizer(info, ModelConfig(tokenizer=str(file)), FrontendConfig()).eos_ids == (END,)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_unusable_named_tokenizer_stops_the_start(info: ModelInfo, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load(info, tokenizer=str(file))


def word_pieces() -> tokenizers.Tokenizer:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "do": 3, ".": 4, "##s": 5}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return backend


def converted_sentence_piece(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    tokens = ["<unk>", "\u2581", "a", "b", "\u2581a", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[("\u2581", "a")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoder
    return backend


STRIPPED = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


@pytest.mark.parametrize(
    ("backend", "joins_bytes"),
    [
        (byte_level_backend(), True),
        (converted_sentence_piece(decoders.Sequence(STRIPPED)), True),
        (converted_sentence_piece(decoders.Sequence([decoders.Replace("a", "b")])), False),
        (word_pieces(), False),
    ],
    ids=["byte level", "SentencePiece", "other sequence", "word pieces"],
)
def test_text_of_ids_is_that_of_the_library(backend: tokenizers.Tokenizer, joins_bytes: bool, tmp_path: Path) -> None:
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(model_info(tmp_path), ModelConfig(), FrontendConfig())
    assert tokenizer.joins_bytes == joins_bytes
    for text in ("a b", " a", "playing dos.", "日本 a", "é"):
        ids = backend.encode(text).ids
        assert tokenizer.decode(ids) == backend.decode(ids), text
