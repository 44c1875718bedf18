"""Engines take turns: in every round each does the same work, and what a machine does besides meets all of them."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .process import EngineError

__all__ = ["MACHINE", "Figures", "Measurements", "take_turns"]

# Stands among engines for what the machine itself can do.
MACHINE = "machine"
Runner = TypeVar("Runner")
# By metric, then by engine: one value a round.
Figures = dict[str, dict[str, list[float]]]


@dataclass(slots=True)
class Measurements:
    """What was measured of one model.

    Attributes:
        figures: by metric and engine.
        failures: engine and reason, of those that dropped out.
        samples: by name and engine, values for pictures.
    """

    figures: Figures = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    samples: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def add(self, engine: str, values: Mapping[str, float]) -> None:
        """One round's values of an engine."""
        for metric, value in values.items():
            self.figures.setdefault(metric, {}).setdefault(engine, []).append(value)

    def fail(self, engine: str, error: Exception) -> None:
        """Say it now, and in the results."""
        print(f"{engine} drops out: {error}", file=sys.stderr)
        self.failures.append((engine, str(error)))

    @contextlib.contextmanager
    def noting(self, engine: str) -> Iterator[None]:
        """A failure of the engine within is noted, and goes no further."""
        try:
            yield
        except EngineError as error:
            self.fail(engine, error)

    def median(self, metric: str, engine: str) -> float | None:
        """Of all rounds; None where there is no value."""
        values = self.figures.get(metric, {}).get(engine)
        return statistics.median(values) if values else None


def take_turns(
    what: str,
    runners: dict[str, Runner],
    num_rounds: int,
    measurements: Measurements,
    work: Callable[[str, Runner, int], Mapping[str, float]],
    warm_ups: int = 1,
) -> None:
    """Run rounds of a scenario; every second one in the other order. Warm-up rounds come first and aren't counted.

    Args:
        what: the scenario's name, for people.
        runners: by engine. One that fails is taken out.
        num_rounds: that count.
        measurements: get what ``work`` returns.
        work: engine, runner and round to values by metric.
        warm_ups: rounds before; they have negative numbers.
    """
    for round_ in range(-warm_ups, num_rounds):
        for name in _order(list(runners), round_):
            try:
                values = work(name, runners[name], round_)
            except EngineError as error:
                measurements.fail(name, error)
                del runners[name]
                continue
            if round_ >= 0:
                measurements.add(name, values)
    for name in runners:
        medians = {m: measurements.median(m, name) for m in measurements.figures if m.startswith(what)}
        shown = ", ".join(f"{m.removeprefix(what)[1:]} {v:.4g}" for m, v in medians.items() if v is not None)
        print(f"{what}: {name}: {shown}", file=sys.stderr)


def _order(names: Sequence[str], round_: int) -> Sequence[str]:
    return names if round_ % 2 == 0 else names[::-1]
