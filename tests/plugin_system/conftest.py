"""A folder to install sample distributions into, and processes that see it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sample_plugins.install import install_sample, write_metadata


@dataclass(frozen=True)
class Site:
    """An extra folder on the path of child processes."""

    path: Path

    def install(self, sample: str, *, distribution: str | None = None, version: str | None = None) -> None:
        install_sample(sample, self.path, distribution=distribution, version=version)

    def metadata(
        self, distribution: str, version: str, groups: dict[str, dict[str, str]], *, suffix: str = "dist-info"
    ) -> None:
        write_metadata(self.path, distribution, version, groups, suffix=suffix)

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in a new process in which the folder is installed."""
        inherited = {k: v for k, v in os.environ.items() if k != "VLLM_PLUGINS"}
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**inherited, "PYTHONPATH": str(self.path), **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def output(self, code: str, **variables: str) -> str:
        """What the code prints; it must succeed."""
        done = self.run(code, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site that this process sees as well; good for metadata, children are better for loading."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return Site(folder)


@pytest.fixture
def write_module(site: Site) -> Callable[[str, str], None]:
    """Write a module into the site."""

    def write(name: str, source: str) -> None:
        (site.path / f"{name}.py").write_text(source, encoding="utf-8")

    return write
