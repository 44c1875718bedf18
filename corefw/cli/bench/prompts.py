"""Prompts for benchmarks: made at random, with shared prefixes, or from files."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from corefw.errors import ConfigError

__all__ = ["DATASETS", "BenchPrompt", "IdPrompts", "PromptMaker", "WordPrompts", "add_dataset_flags", "make_prompts"]

# Frequent short words: in most vocabularies each is one token.
_WORD_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend power hour game"
)
_WORDS = tuple(_WORD_TEXT.split())


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """What one request sends: text or token ids, and how many tokens it wants at most."""

    prompt: str | list[int]
    max_tokens: int


class PromptMaker(Protocol):
    """Makes prompts of a wanted length."""

    def make(self, num_tokens: int, rng: random.Random) -> list[Any]:
        """Parts of a prompt; concatenated lists are longer prompts."""
        ...

    def join(self, parts: list[Any]) -> str | list[int]:
        """Parts as they are sent."""
        ...


@dataclass(frozen=True, slots=True)
class WordPrompts:
    """Texts of random words, for servers whose tokenizer isn't known.

    ``tokens_per_word`` is measured at the server.
    """

    tokens_per_word: float = 1.0

    def make(self, num_tokens: int, rng: random.Random) -> list[Any]:
        """Words."""
        return rng.choices(_WORDS, k=max(1, round(num_tokens / self.tokens_per_word)))

    def join(self, parts: list[Any]) -> str | list[int]:
        """One text."""
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class IdPrompts:
    """Random token ids: lengths are exact."""

    ids: range

    def make(self, num_tokens: int, rng: random.Random) -> list[Any]:
        """Ids."""
        return rng.choices(self.ids, k=max(1, num_tokens))

    def join(self, parts: list[Any]) -> str | list[int]:
        """The ids."""
        return parts


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of every dataset."""
    group = parser.add_argument_group("dataset")
    group.add_argument("--dataset-name", choices=tuple(DATASETS), default="random", help="default: random")
    group.add_argument("--dataset-path", metavar="FILE", help="of sharegpt (JSON) and custom (JSON lines with prompt)")
    integers = {
        "random-input-len": (1024, "tokens of a random prompt"),
        "random-output-len": (128, "tokens of its output"),
        "random-prefix-len": (0, "tokens that all random prompts share, before their own"),
        "prefix-repetition-prefix-len": (256, "tokens of a shared prefix"),
        "prefix-repetition-suffix-len": (256, "tokens after it"),
        "prefix-repetition-num-prefixes": (10, "different prefixes"),
        "prefix-repetition-output-len": (128, "tokens of the output"),
        "custom-output-len": (256, "tokens of the output of a custom prompt"),
    }
    for name, (default, text) in integers.items():
        group.add_argument(f"--{name}", type=int, default=default, metavar="INT", help=f"{text} (default: {default})")
    group.add_argument(
        "--sharegpt-output-len", type=int, metavar="INT", help="default: as long as the answer in the file"
    )
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="FLOAT",
        help="lengths vary by this share of themselves, up and down (default: 0)",
    )  # fmt: skip


def make_prompts(options: argparse.Namespace, maker: PromptMaker) -> list[BenchPrompt]:
    """The prompts that the flags ask for, the same for the same ``--seed``.

    Raises:
        ConfigError: a dataset can't be read, or the range ratio makes no sense.
    """
    if not 0 <= options.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio must be in [0, 1), got {options.random_range_ratio}")
    return DATASETS[options.dataset_name](options, maker, random.Random(options.seed))


def _random(options: argparse.Namespace, maker: PromptMaker, rng: random.Random) -> list[BenchPrompt]:
    def length(middle: int) -> int:
        spread = middle * options.random_range_ratio
        return max(1, rng.randint(round(middle - spread), round(middle + spread)))

    shared = maker.make(options.random_prefix_len, rng) if options.random_prefix_len else []
    return [
        BenchPrompt(
            maker.join(shared + maker.make(length(options.random_input_len), rng)), length(options.random_output_len)
        )
        for _ in range(options.num_prompts)
    ]


def _prefix_repetition(options: argparse.Namespace, maker: PromptMaker, rng: random.Random) -> list[BenchPrompt]:
    num_prefixes = max(1, options.prefix_repetition_num_prefixes)
    prefixes = [maker.make(options.prefix_repetition_prefix_len, rng) for _ in range(num_prefixes)]
    prompts = [
        BenchPrompt(
            maker.join(prefixes[i % num_prefixes] + maker.make(options.prefix_repetition_suffix_len, rng)),
            options.prefix_repetition_output_len,
        )
        for i in range(options.num_prompts)
    ]
    rng.shuffle(prompts)
    return prompts


def _sharegpt(options: argparse.Namespace, _: PromptMaker, rng: random.Random) -> list[BenchPrompt]:
    """First question and answer of each conversation; the answer's length in tokens is taken as a quarter of its
    characters, since the server's tokenizer isn't known."""
    try:
        talks = [talk.get("conversations") or talk.get("conversation") or [] for talk in json.loads(_read(options))]
        pairs = [(str(turns[0]["value"]), str(turns[1]["value"])) for turns in talks if len(turns) >= 2]
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ConfigError(
            f"{options.dataset_path!r} must be a JSON list of objects with conversations, a list of objects with value"
        ) from None
    rng.shuffle(pairs)
    if not pairs:
        raise ConfigError(f"{options.dataset_path!r} has no conversations with two turns")
    chosen = [pairs[i % len(pairs)] for i in range(options.num_prompts)]
    return [BenchPrompt(q, options.sharegpt_output_len or max(1, len(a) // 4)) for q, a in chosen]


def _custom(options: argparse.Namespace, _: PromptMaker, __: random.Random) -> list[BenchPrompt]:
    try:
        lines = [json.loads(line) for line in _read(options).splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{options.dataset_path!r} must have a JSON object a line: {error}") from None
    if not lines or not all(isinstance(line, dict) and "prompt" in line for line in lines):
        raise ConfigError(f'{options.dataset_path!r} must have lines like {{"prompt": …}}')
    chosen = [lines[i % len(lines)] for i in range(options.num_prompts)]
    return [BenchPrompt(line["prompt"], int(line.get("output_tokens", options.custom_output_len))) for line in chosen]


def _read(options: argparse.Namespace) -> str:
    if options.dataset_path is None:
        raise ConfigError(f"--dataset-name {options.dataset_name} needs --dataset-path")
    try:
        return Path(options.dataset_path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--dataset-path {options.dataset_path!r} can't be read: {error.strerror}") from None


DATASETS: dict[str, Callable[[argparse.Namespace, PromptMaker, random.Random], list[BenchPrompt]]] = {
    "random": _random,
    "prefix_repetition": _prefix_repetition,
    "sharegpt": _sharegpt,
    "custom": _custom,
}
