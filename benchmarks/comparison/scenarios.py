"""What the engines do in turns, in processes of their own, and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from .bandwidth import Bound
from .process import EngineProcess, Generated
from .prompts import Prompts
from .rounds import MACHINE, Measurements, take_turns

__all__ = ["FULL", "QUICK", "SMOKE", "Sizes", "at_once", "shared_prefix", "single", "sweeps"]

_NUM_STEPS = 16  # behind each context

Runners = dict[str, EngineProcess]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is done.

    Attributes:
        rounds: that count.
        start_rounds: of starts.
        single: tokens of a prompt and of its output.
        at_once: number of prompts, about so many tokens each, tokens of each output.
        shared: number of prompts, tokens that they share, tokens of their own, tokens of each output.
        server: clients, requests, tokens of a prompt and of its output.
        concurrency: numbers of prompts, for the picture; empty leaves it out.
        contexts: tokens of a prompt, for the picture.
    """

    rounds: int
    start_rounds: int
    single: tuple[int, int] = (512, 128)
    at_once: tuple[int, int, int] = (32, 128, 64)
    shared: tuple[int, int, int, int] = (16, 512, 16, 32)
    server: tuple[int, int, int, int] = (8, 24, 128, 64)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (16, 256, 512, 1024, 1536)


FULL = Sizes(rounds=3, start_rounds=3)
QUICK = Sizes(
    rounds=1, start_rounds=1, single=(512, 32), at_once=(32, 128, 16), shared=(16, 512, 16, 8), server=(8, 16, 128, 32),
    concurrency=(1, 8, 32), contexts=(16, 512, 1024),
)  # fmt: skip
SMOKE = Sizes(
    rounds=1, start_rounds=1, single=(16, 4), at_once=(2, 8, 4), shared=(2, 32, 4, 2), server=(1, 2, 8, 4),
    concurrency=(1, 2), contexts=(8, 16),
)  # fmt: skip


def single(engines: Runners, bound: Bound, prompts: Prompts, sizes: Sizes, measured: Measurements) -> None:
    """One stream: behind a long prompt, and from the beginning; and what memory bandwidth allows at that moment."""
    num_prompt, num_tokens = sizes.single
    runners: dict[str, EngineProcess | Bound] = {MACHINE: bound, **engines}

    def work(name: str, engine: EngineProcess | Bound, round_: int) -> Mapping[str, float]:
        if isinstance(engine, Bound):
            contexts = {"deep": num_prompt + num_tokens // 2, "empty": num_tokens // 2}
            return {f"single decode_{where}": engine.rate(context) for where, context in contexts.items()}
        with engine.awake():
            deep = engine.generate([prompts.make(num_prompt, f"Single {round_}")], num_tokens)
            empty = engine.generate([prompts.make(4, f"{round_}")], num_tokens)
        _keep_tokens(measured, "single", name, round_, deep)
        return {
            "single ttft_ms": deep.ttft_s * 1000,
            "single decode_deep": deep.decode_rate,
            "single decode_empty": empty.decode_rate,
        }

    take_turns("single", runners, sizes.rounds, measured, work)
    for name in engines.keys() - runners.keys():
        del engines[name]


def at_once(runners: Runners, prompts: Prompts, sizes: Sizes, measured: Measurements) -> None:
    """Many prompts of different lengths, all at once."""
    num_prompts, length, num_tokens = sizes.at_once

    def work(name: str, engine: EngineProcess, round_: int) -> Mapping[str, float]:
        lengths = [length - length // 8 + place * (length // 4) // num_prompts for place in range(num_prompts)]
        asked = [prompts.make(size, f"Batch {round_} {place}") for place, size in enumerate(lengths)]
        with engine.awake():
            made = engine.generate(asked, num_tokens)
        _keep_tokens(measured, "at once", name, round_, made)
        if round_ == sizes.rounds - 1:
            first_ms = [times[0] * 1000 for times in made.times_s]
            measured.samples.setdefault("at once ttft_ms", {})[name] = first_ms
            measured.samples.setdefault("at once itl_ms", {})[name] = [gap * 1000 for gap in made.gaps_s]
        return {"at_once tokens_per_s": num_prompts * num_tokens / made.elapsed_s}

    take_turns("at_once", runners, sizes.rounds, measured, work)


def shared_prefix(runners: Runners, prompts: Prompts, sizes: Sizes, measured: Measurements) -> None:
    """Many prompts with one beginning that is new; then others that begin with it, too."""
    num_prompts, num_shared, num_own, num_tokens = sizes.shared

    def work(_: str, engine: EngineProcess, round_: int) -> Mapping[str, float]:
        common = prompts.make(num_shared, f"Shared {round_}")
        seconds = {}
        with engine.awake():
            for state in ("cold", "warm"):
                own = [prompts.make(num_own + 1, f"{state} {place}")[1:] for place in range(num_prompts)]
                made = engine.generate([common + ids for ids in own], num_tokens)
                seconds[f"shared {state}_s"] = made.elapsed_s
        return seconds

    take_turns("shared", runners, sizes.rounds, measured, work)


def sweeps(runners: Runners, prompts: Prompts, sizes: Sizes, measured: Measurements, max_position: int) -> None:
    """For pictures: throughput and step time by number of prompts, step time by context. One round.

    Contexts that the model isn't made for are left out.
    """
    _, length, _ = sizes.at_once
    for name, engine in list(runners.items()):
        for number in sizes.concurrency:
            asked = [prompts.make(length, f"Sweep {number} {place}") for place in range(number)]
            made = _try(engine, asked, 24, measured, name)
            if made is None:
                break
            _point(measured, "throughput by concurrency", name, number, 24 * number / made.elapsed_s)
            _point(measured, "step_ms by batch", name, number, _step_ms(made))
        for context in sizes.contexts:
            if context + _NUM_STEPS > max_position:
                break
            made = _try(engine, [prompts.make(context, f"Context {context}")], _NUM_STEPS, measured, name)
            if made is None:
                break
            _point(measured, "step_ms by context", name, context, _step_ms(made))


def _try(
    engine: EngineProcess, asked: list[list[int]], num_tokens: int, measured: Measurements, name: str
) -> Generated | None:
    with measured.noting(name), engine.awake():
        return engine.generate(asked, num_tokens)
    return None


def _point(measured: Measurements, picture: str, name: str, at: int, value: float) -> None:
    measured.samples.setdefault(picture, {}).setdefault(name, []).append([at, value])


def _step_ms(made: Generated) -> float:
    """The median time between steps after every prompt has its first token."""
    begin_s = max(times[0] for times in made.times_s)
    steps_s = sorted({time for time in made.times_s[0] if time >= begin_s})
    gaps_s = [later - sooner for sooner, later in pairwise(steps_s)]
    return median(gaps_s) * 1000 if gaps_s else float("nan")


def _keep_tokens(measured: Measurements, what: str, name: str, round_: int, made: Generated) -> None:
    if round_ >= 0:
        measured.samples.setdefault(f"{what} tokens", {}).setdefault(name, []).extend(made.tokens)
