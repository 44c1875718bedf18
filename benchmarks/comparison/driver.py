"""The engine's side of a comparison: one engine in a process of its own, driven by lines of JSON.

A driver's module is run by the interpreter of the engine's own environment, so this file imports the standard library
alone. What libraries print goes to standard error; standard output carries the answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Driver", "Recorder", "serve"]


class Recorder:
    """When each token of each prompt came; ``monotonic`` is one clock for all processes of a machine."""

    def __init__(self, num_prompts: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_prompts)]
        self.times_s: list[list[float]] = [[] for _ in range(num_prompts)]
        self.start_s = time.monotonic()

    def add(self, index: int, tokens: list[int], now_s: float | None = None) -> None:
        """Tokens of one prompt that have just come."""
        at_s = (time.monotonic() if now_s is None else now_s) - self.start_s
        self.tokens[index].extend(tokens)
        self.times_s[index].extend([at_s] * len(tokens))


class Driver(ABC):
    """What a comparison asks of an engine."""

    @abstractmethod
    def load(self, weights: str, options: dict[str, Any]) -> dict[str, Any]:
        """Load a model; what is worth knowing about how: at least ``version``."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], num_tokens: int) -> Recorder:
        """Continue all prompts at once, greedily, by exactly so many tokens."""

    def score(self, ids: list[int]) -> float:
        """The mean negative log-probability of each token after the first.

        Raises:
            NotImplementedError: this engine doesn't tell.
        """
        raise NotImplementedError("this engine doesn't tell the probabilities of a prompt")


def serve(driver: Driver) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            answer = _answer(driver, json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _answer(driver: Driver, call: dict[str, Any]) -> dict[str, Any]:
    if call["call"] == "load":
        return driver.load(call["weights"], call["options"])
    if call["call"] == "generate":
        record = driver.generate(call["prompts"], call["num_tokens"])
        return {"tokens": record.tokens, "times_s": record.times_s, "start_s": record.start_s}
    if call["call"] == "score":
        return {"mean_nll": driver.score(call["ids"])}
    raise ValueError(f"no call {call['call']!r}")
