"""``corefw bench``: the table of benchmarks."""

from __future__ import annotations

import argparse
import importlib

__all__ = ["add_arguments", "run"]

_BENCHMARKS = {
    "serve": "drive a server as clients would: latencies, throughput, goodput",
    "throughput": "tokens per second of the engine, everything submitted at once",
    "latency": "time of one batch from prompt to last token",
    "startup": "time from a command to a server that is ready, and to its first token; memory",
    "step": "time of a step's stages, operators and recorded kernels",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every benchmark; their modules import nothing heavy."""
    benchmarks = parser.add_subparsers(dest="benchmark", title="benchmarks", metavar="BENCHMARK", required=True)
    for name, text in _BENCHMARKS.items():
        subparser = benchmarks.add_parser(name, help=text, allow_abbrev=False)
        importlib.import_module(f"corefw.cli.bench.{name}").add_arguments(subparser)


def run(namespace: argparse.Namespace) -> int:
    """Run one."""
    status: int = importlib.import_module(f"corefw.cli.bench.{namespace.benchmark}").run(namespace)
    return status
