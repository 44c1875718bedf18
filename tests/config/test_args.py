"""What the user said becomes typed values, and nothing else."""

from __future__ import annotations

import argparse

import pytest

from corefw.config.args import UserArgs, add_flags, parse_bytes
from corefw.config.engine_config import CacheConfig, ModelConfig, ServerConfig
from corefw.errors import ConfigError


def _parse(*flags: str) -> UserArgs:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return UserArgs.from_namespace(parser.parse_args(flags))


def test_only_given_flags_are_explicit() -> None:
    assert _parse().explicit == frozenset()
    args = _parse("--max-model-len", "512", "--no-enable-prefix-caching")
    assert args.explicit == {"model.max_model_len", "cache.enable_prefix_caching"}
    assert CacheConfig(**args.section("cache")).enable_prefix_caching is False
    assert ModelConfig(**args.section("model")).max_model_len == 512


def test_a_flag_given_twice_collects_where_the_option_is_a_tuple() -> None:
    args = _parse("--api-key", "one", "--api-key", "two")
    assert ServerConfig(**args.section("server")).api_key == ("one", "two")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("4GiB", 4 * 2**30),
        ("2G", 2 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("1.5k", 1500),
        ("2TiB", 2**41),
        ("3T", 3 * 10**12),
        ("9223372036854775807", 2**63 - 1),
        ("8kib", 8192),
    ],
)
def test_sizes_are_read_with_their_units(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "4PB", "-1x", "1e999", "four", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_bytes(text)


def test_keywords_are_named_like_flags() -> None:
    args = UserArgs.from_keywords(model="x", dtype="float32", block_size=32)
    assert args.values == {"model.model": "x", "model.dtype": "float32", "cache.block_size": 32}


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        UserArgs.from_keywords(max_modellen=5)


@pytest.mark.parametrize(
    ("owner", "values", "flag"),
    [
        (ModelConfig, {"max_model_len": 0}, "--max-model-len"),
        (ModelConfig, {"dtype": "float8"}, "--dtype"),
        (CacheConfig, {"block_size": -1}, "--block-size"),
        (ServerConfig, {"port": 70000}, "--port"),
    ],
)
def test_a_value_out_of_range_names_its_flag(owner: type, values: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        owner(**values)
