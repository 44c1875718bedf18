"""The comparison runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corefw.testing.tiny_models import write_tiny_llama
from tests.policy.sources import ROOT


@pytest.mark.slow
def test_one_small_round_gives_a_table_and_figures(tmp_path: Path) -> None:
    model, output = write_tiny_llama(tmp_path / "model"), tmp_path / "out.json"
    small = ["--rounds", "1", "--input-len", "8", "--output-len", "4", "--batch-sizes", "1,2"]
    command = [sys.executable, str(ROOT / "benchmarks" / "compare_transformers.py"), "--model", str(model), *small]
    run = subprocess.run(
        [*command, "--kv-cache-memory", str(2**23), "--output-json", str(output)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "| at once | corefw | transformers | ratio |" in run.stdout
    rows = json.loads(output.read_text())["rows"]
    assert [row["batch_size"] for row in rows] == [1, 2]
    assert all(row["ratio"] > 0 and len(row["rates"]["corefw"]) == 1 for row in rows)
