"""Installs a sample distribution into a folder: the package, and metadata as an installer writes it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

__all__ = ["SAMPLES", "install_sample", "write_metadata"]

SAMPLES = Path(__file__).parent


def install_sample(sample: str, site: Path, *, distribution: str | None = None, version: str | None = None) -> None:
    """Install ``sample`` into ``site``, under another name or version if given."""
    source = SAMPLES / sample
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = f"corefw_sample_{sample}"
    shutil.copytree(source / package, site / package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    name = distribution or project["name"]
    write_metadata(site, name, version or project["version"], project["entry-points"])


def write_metadata(
    site: Path, distribution: str, version: str, groups: dict[str, dict[str, str]], *, suffix: str = "dist-info"
) -> None:
    """Write the metadata folder of a distribution (``suffix`` ``egg-info`` for the old kind)."""
    stem = distribution.replace("-", "_")
    modern = suffix == "dist-info"
    folder = site / f"{stem}-{version}.{suffix}" if modern else site / f"{stem}.{suffix}"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (folder / ("METADATA" if modern else "PKG-INFO")).write_text(text, encoding="utf-8")
    sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items())
    (folder / "entry_points.txt").write_text("\n".join(sections), encoding="utf-8")
