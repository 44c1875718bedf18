"""How long ``corefw plugins list`` takes, and how much longer with many plugin distributions installed.

python benchmarks/plugin_discovery.py --runs 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = (sys.executable, "-m", "corefw.cli.main", "plugins", "list")


def write_distributions(site: Path, count: int) -> None:
    """As many metadata folders as an installer would leave, each with one plugin and a long METADATA."""
    for index in range(count):
        folder = site / f"corefw_many_{index}-1.0.{index}.dist-info"
        folder.mkdir()
        header = f"Metadata-Version: 2.4\nName: corefw-many-{index}\nVersion: 1.0.{index}\n\n"
        (folder / "METADATA").write_text(header + "A long description.\n" * 500, encoding="utf-8")
        group = "[corefw.endpoint_plugins]\n"
        (folder / "entry_points.txt").write_text(f"{group}many_{index} = corefw_many_{index}:Many\n", encoding="utf-8")


def seconds(site: Path, runs: int) -> list[float]:
    """Time of each run of the command with that folder on the path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(COMMAND, env=environment, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--distributions", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as none, tempfile.TemporaryDirectory() as many:
        write_distributions(Path(many), options.distributions)
        alone = statistics.median(seconds(Path(none), options.runs))
        crowded = statistics.median(seconds(Path(many), options.runs))
    added = (crowded - alone) * 1e3
    print(f"plugins list: {alone * 1e3:.0f} ms; {options.distributions} distributions add {added:.0f} ms")


if __name__ == "__main__":
    main()
