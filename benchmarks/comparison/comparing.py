"""One model through all scenarios."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .bandwidth import Bandwidth, Bound
from .engines import KV_CACHE_MIB, Engine
from .prompts import Prompts
from .rounds import MACHINE, Measurements
from .scenarios import Sizes, at_once, shared_prefix, single, sweeps
from .serving import serving
from .starting import Started, start_engine, start_rounds
from .weights import Weights

__all__ = ["PARTS", "Comparison"]

PARTS = ("start", "single", "at_once", "shared", "sweeps", "accuracy", "server")
_MAX_SCORED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        engines: that take part.
        weights: of the model.
        sizes: how much is done.
        parts: which scenarios.
        folder: for logs.
    """

    engines: Sequence[Engine]
    weights: Weights
    sizes: Sizes
    parts: Sequence[str]
    folder: Path

    def run(self) -> tuple[Measurements, dict[str, dict[str, object]]]:
        """All measurements, and what each engine's driver told."""
        measured, prompts = Measurements(), Prompts(self.weights.directory)
        with Started(self.folder, self.weights, prompts, measured) as started:
            self._note_sizes(measured)
            if "start" in self.parts:
                start_rounds(list(self.engines), self.weights, prompts, self.folder, self.sizes.start_rounds, measured)
            if set(self.parts) & {"single", "at_once", "shared", "sweeps", "accuracy"}:
                for engine in self.engines:
                    _say(f"starting {engine.label}")
                    started.start(engine)
                self._offline(started, prompts, measured)
                started.end()
            if "server" in self.parts:
                for engine in self.engines:
                    if engine.server is not None and Path(engine.server[0]).exists():
                        _say(f"starting the server of {engine.label}")
                        started.start_server(engine)
                serving(started.servers, prompts, self.sizes, measured)
            return measured, started.about

    def _offline(self, started: Started, prompts: Prompts, measured: Measurements) -> None:
        if "single" in self.parts:
            single(started.engines, self._bound(), prompts, self.sizes, measured)
        if "at_once" in self.parts:
            at_once(started.engines, prompts, self.sizes, measured)
        if "shared" in self.parts:
            shared_prefix(started.engines, prompts, self.sizes, measured)
        if "sweeps" in self.parts:
            sweeps(started.engines, prompts, self.sizes, measured, self.weights.max_position)
        if "accuracy" in self.parts:
            self._accuracy(started, prompts, measured)

    def _accuracy(self, started: Started, prompts: Prompts, measured: Measurements) -> None:
        """Each engine's perplexity on the fixed text, and corefw's in float32, which the others are held against."""
        text = prompts.text[: min(_MAX_SCORED, self.weights.max_position - 1)]
        for name, process in started.engines.items():
            with measured.noting(name), process.awake():
                mean_nll = process.score(text)
                if mean_nll is not None:
                    measured.add(name, {"accuracy perplexity": math.exp(mean_nll)})
        for engine in _for_accuracy(self.engines):
            with measured.noting(engine.name):
                process, _, _ = start_engine(engine, self.weights, prompts, self.folder)
                with process:
                    mean_nll = process.score(text)
                    assert mean_nll is not None
                    measured.add(engine.name, {"accuracy perplexity": math.exp(mean_nll)})

    def _bound(self) -> Bound:
        return Bound(Bandwidth(self.weights.num_bytes("hf")), self.weights.num_bytes("hf"), self._token_bytes())

    def _token_bytes(self) -> int:
        """Of keys and values of one token, in 16 bits."""
        config = json.loads((self.weights.directory / "config.json").read_text(encoding="utf-8"))
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return int(2 * 2 * config["num_hidden_layers"] * heads * size)

    def _note_sizes(self, measured: Measurements) -> None:
        measured.add(MACHINE, {"kv_cache token_bytes": self._token_bytes()})
        for engine in self.engines:
            measured.add(engine.name, {"weights bytes": self.weights.num_bytes(engine.form)})
            if engine.own:
                measured.add(engine.name, {"kv_cache bytes": KV_CACHE_MIB * 2**20})


def _for_accuracy(engines: Sequence[Engine]) -> list[Engine]:
    own = [engine for engine in engines if engine.own]
    if not own:
        return []
    exact = next((engine for engine in own if engine.form == "gguf"), own[0])
    options = {name: value for name, value in exact.options.items() if not name.startswith("quantization")}
    return [replace(exact, name="corefw-float32", options={**options, "dtype": "float32"})]


def _say(text: str) -> None:
    print(text, file=sys.stderr)
