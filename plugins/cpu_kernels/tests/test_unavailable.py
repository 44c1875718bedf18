"""A pack without its library leaves the ops to others, and says why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import corefw_cpu_kernels

_ASK = """
import sys, corefw_cpu_kernels
corefw_cpu_kernels.__path__[:] = [sys.argv[1]]
from corefw.interfaces.op_provider import OpRequest
from corefw_cpu_kernels.provider import CpuKernels
request = OpRequest(op="rms_norm", device_type="cpu", dtype="bfloat16", batch_invariant=False, shape={})
print(CpuKernels().supports(request))
"""


def test_an_absent_library_is_the_reason_why_not(tmp_path: Path) -> None:
    sources = next(Path(folder) for folder in corefw_cpu_kernels.__path__ if (Path(folder) / "provider.py").exists())
    package = tmp_path / "package"
    shutil.copytree(sources, package, ignore=shutil.ignore_patterns("*.so"))
    child = [sys.executable, "-c", _ASK, str(package)]
    said = subprocess.run(child, capture_output=True, text=True, check=True).stdout
    assert "installed without a C++ compiler" in said
