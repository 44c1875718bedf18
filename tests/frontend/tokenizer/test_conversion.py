from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken

from corefw.config.engine_config import FrontendConfig, ModelConfig
from corefw.errors import ConfigError
from corefw.frontend.tokenizer import load_tokenizer
from corefw.frontend.tokenizer.base import Tokenizer
from tests.frontend.vocabularies import model_info

TEXTS = ["hello world", "the lower the wider", "a  b", "été 日本 🙂", "wider\nlower", "1234"]
_CORPUS = ["hello world lower wider the newest widest", "the lower world says hello", "wider and wider"] * 20


@pytest.fixture(scope="module")
def vocabulary() -> bytes:
    """A SentencePiece model with byte fallback."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS),
        model_writer=model,
        vocab_size=310,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


def write_directory(folder: Path, vocabulary: bytes, **settings: object) -> Path:
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(vocabulary)
    values = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**values, **settings}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def converted(vocabulary: bytes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory, and a cache that has its converted tokenizer."""
    root = tmp_path_factory.mktemp("converted")
    directory, cache = write_directory(root / "model", vocabulary), root / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COREFW_CACHE_DIR", str(cache))
        load(directory)
    return directory, cache


def load(directory: Path, *, keep: bool = True) -> Tokenizer:
    return load_tokenizer(model_info(directory), ModelConfig(), FrontendConfig(tokenizer_cache=keep))


def test_a_sentence_piece_vocabulary_gives_its_own_librarys_ids(
    converted: tuple[Path, Path], vocabulary: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COREFW_CACHE_DIR", str(converted[1]))
    tokenizer = load(converted[0])
    reference = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (reference.bos_id(), (reference.eos_id(),))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text


def test_it_is_converted_once_and_then_taken_from_the_cache(
    converted: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path(shutil.copytree(converted[1], tmp_path / "cache"))
    monkeypatch.setenv("COREFW_CACHE_DIR", str(cache))
    (file,) = (cache / "tokenizers").glob("*.json")
    stored = tokenizers.Tokenizer.from_file(str(file))
    stored.add_special_tokens([AddedToken("hello world", special=True)])
    stored.save(str(file))
    assert len(load(converted[0]).encode("hello world", add_special_tokens=False, parse_special=True)) == 1


def test_without_transformers_the_extra_is_named(
    vocabulary: bytes, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install 'corefw\[transformers\]'.*--tokenizer"):
        load(write_directory(tmp_path / "model", vocabulary))


def test_a_tokenizer_that_is_code_is_refused(vocabulary: bytes, tmp_path: Path, cache_folder: Path) -> None:
    directory = write_directory(tmp_path / "model", vocabulary, auto_map={"AutoTokenizer": ["tokenization_x.X", None]})
    (directory / "tokenization_x.py").write_text("raise SystemExit('code of a model was run')")
    with pytest.raises(ConfigError, match=r"auto_map in tokenizer_config\.json.*never run"):
        load(directory)


def test_a_vocabulary_that_cant_be_converted_is_refused_with_the_reason(tmp_path: Path, cache_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"transformers can't make a tokenizer\.json.*--tokenizer"):
        load(write_directory(tmp_path / "model", b"not a vocabulary"), keep=False)


def test_a_directory_without_any_vocabulary_says_what_is_expected(tmp_path: Path, cache_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer at .*tokenizer\.json"):
        load(tmp_path)
