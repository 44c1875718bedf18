"""``corefw collect-env``: what a report about a problem needs. Torch is asked in a child process."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from corefw import __version__, env
from corefw.plugin_system.report import survey

__all__ = ["add_arguments", "run"]

_PACKAGES = (
    "torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface-hub", "msgspec", "pyzmq", "starlette",
    "uvicorn", "uvloop", "httptools", "jinja2", "triton", "gguf",
)  # fmt: skip
# Instruction sets that kernels choose by.
_CPU_FLAGS = re.compile(r"^(?:avx|amx|fma|f16c|sse4|asimd|sve|bf16|i8mm|neon)")
_TORCH_QUESTION = """
import json, torch
print(json.dumps({
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "accelerator": str(torch.accelerator.current_accelerator() or "none"),
}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw collect-env``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(namespace: argparse.Namespace) -> int:
    """Print the report."""
    report = _report()
    if namespace.json:
        print(json.dumps(report, indent=2))
        return 0
    for section, values in report.items():
        print(f"{section}:")
        for name, value in values.items():
            print(f"  {name}: {value}")
    return 0


def _report() -> dict[str, dict[str, Any]]:
    return {
        "corefw": {"version": __version__, "location": str(Path(__file__).resolve().parents[1])},
        "system": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "libc": " ".join(platform.libc_ver()),
        },
        "cpu": _cpu(),
        "memory": _memory(),
        "torch": _torch(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "environment": env.described(),
        "plugins": _plugins(),
    }


def _cpu() -> dict[str, Any]:
    text = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = [flag for flag in flags.group(1).split() if _CPU_FLAGS.match(flag)] if flags else []
    return {
        "model": model.group(1) if model else platform.processor() or platform.machine(),
        "logical cores": os.cpu_count(),
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cgroup limit": _read("/sys/fs/cgroup/cpu.max").strip() or "none",
        "flags": " ".join(sorted(known)),
    }


def _memory() -> dict[str, str]:
    found = re.findall(r"^(MemTotal|MemAvailable|SwapTotal):\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    limit = _read("/sys/fs/cgroup/memory.max").strip() or "none"
    return {**{name: f"{int(kib) / 2**20:.2f} GiB" for name, kib in found}, "cgroup limit": limit}


def _torch() -> dict[str, Any]:
    asked = subprocess.run(
        [sys.executable, "-P", "-c", _TORCH_QUESTION], capture_output=True, text=True, timeout=120, check=False
    )
    if asked.returncode:
        return {"import failed": asked.stderr.strip().splitlines()[-1] if asked.stderr.strip() else "no reason given"}
    answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return answer


def _plugins() -> dict[str, str]:
    found = survey(None)
    rows = {f"{row.group}:{row.name}": f"{row.state} ({row.distribution} {row.version})" for row in found.rows}
    return {**rows, **{f"problem {i}": text for i, text in enumerate(found.problems, start=1)}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
