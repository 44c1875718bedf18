from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.policy.sources import ROOT


def test_rooms_import_downwards_only() -> None:
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
