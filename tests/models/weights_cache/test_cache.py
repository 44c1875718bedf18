"""Models that get their weights from an earlier start."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from corefw.builtins.ops.torch_ops import TorchOps
from corefw.config.engine_config import EngineConfig, ResolvedPlugin
from corefw.interfaces.op_provider import OpRequest
from corefw.models.build import build_model, make_build_context, make_model
from corefw.models.layers.context import BuildContext
from corefw.models.weights_cache.cache import WeightsCache
from corefw.plugin_system.manager import PluginManager
from corefw.testing.paged_loop import PagedLoop
from corefw.testing.registration import installed_as
from tests.runtime.engines import tiny_config

CPU = torch.device("cpu")


class Columns(TorchOps):
    """Lays weights out by columns, and counts how often."""

    name: ClassVar[str] = "columns"
    rank: ClassVar[int] = 99
    form: ClassVar[str | None] = "columns 1"
    num_prepared: ClassVar[int] = 0

    def supports(self, request: OpRequest) -> str | None:
        return None if request.op == "linear" else "only products"

    def kernel(self, request: OpRequest) -> Callable[..., Any]:
        return lambda input, weight, bias: input @ weight if bias is None else input @ weight + bias

    def prepare_weight(self, request: OpRequest, weight: torch.Tensor) -> torch.Tensor:
        type(self).num_prepared += 1
        return weight.t().contiguous()

    def prepared_form(self) -> str | None:
        return self.form


class Small(WeightsCache):
    min_bytes: ClassVar[int] = 0


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return tiny_config(tmp_path, PluginManager.discover(""), weights_cache=str(tmp_path / "cache"))


@pytest.fixture
def plugins() -> Any:
    with installed_as("op_providers", "columns", Columns):
        yield PluginManager.discover("columns")


def _kept(config: EngineConfig, plugins: PluginManager) -> tuple[torch.nn.Module, BuildContext]:
    """A model from its files, whose weights are kept."""
    build, _ = make_build_context(config, CPU, plugins)
    model = build_model(config, build, plugins)
    cache = Small.of(config, build)
    assert cache is not None
    thread = cache.keep(model, build, ["mind this"])
    assert thread is not None
    thread.join()
    return model, build


def _restored(config: EngineConfig, plugins: PluginManager) -> tuple[torch.nn.Module, BuildContext] | None:
    build, _ = make_build_context(config, CPU, plugins)
    cache = Small.of(config, build)
    kept = None if cache is None else cache.find()
    if cache is None or kept is None:
        return None
    model = make_model(config, dataclasses.replace(build, holds_weights=False), plugins).eval()
    assert sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()) < 1000
    assert cache.restore(model, kept) == ["mind this"]
    return model, build


def test_a_restored_model_computes_the_same_and_prepares_nothing(config: EngineConfig, plugins: PluginManager) -> None:
    loaded = PagedLoop(*_kept(config, plugins)).step({0: [1, 2, 3]})[0]
    before = Columns.num_prepared
    found = _restored(config, plugins)
    assert found is not None
    assert Columns.num_prepared == before
    assert torch.equal(PagedLoop(*found).step({0: [1, 2, 3]})[0], loaded)


def test_weights_of_another_form_model_or_file_arent_found(
    config: EngineConfig, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kept(config, plugins)
    assert _restored(dataclasses.replace(config, fingerprint="another"), plugins) is None
    with monkeypatch.context() as patch:
        patch.setattr(Columns, "form", "columns 2")
        assert _restored(config, plugins) is None
    Path(config.model_info.files.weights[0]).touch()
    assert _restored(config, plugins) is None


def test_weights_that_other_sources_of_a_plugin_made_arent_found(
    config: EngineConfig, plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "rounding_pack"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    method = ResolvedPlugin(
        group="quantization_methods",
        name="mine",
        value="rounding_pack:Method",
        distribution="rounding-pack",
        version="1.0",
    )
    config = dataclasses.replace(config, plugins=dataclasses.replace(config.plugins, resolved=(method,)))
    _kept(config, plugins)
    assert _restored(config, plugins) is not None
    (package / "__init__.py").write_text("Method = None  # changed, and not installed anew\n")
    assert _restored(config, plugins) is None


def test_nothing_is_kept_where_it_is_off_or_the_form_unknown(
    config: EngineConfig, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, _ = make_build_context(config, CPU, plugins)
    off = dataclasses.replace(config, load=dataclasses.replace(config.load, weights_cache="off"))
    assert WeightsCache.of(config, build) is not None
    assert WeightsCache.of(off, build) is None
    monkeypatch.setattr(Columns, "form", None)
    assert WeightsCache.of(config, build) is None


def test_weights_of_other_layers_are_refused_and_loaded_anew(config: EngineConfig, plugins: PluginManager) -> None:
    model, build = _kept(config, plugins)
    cache = Small.of(config, build)
    assert cache is not None
    kept = cache.find()
    assert kept is not None
    other = dataclasses.replace(kept, about={**kept.about, "places": kept.about["places"][1:]})
    assert cache.restore(model, other) is None


def test_a_model_that_makes_more_of_its_weights_isnt_kept(config: EngineConfig, plugins: PluginManager) -> None:
    model, build = _kept(config, plugins)
    model.can_be_restored = False  # type: ignore[assignment]
    cache = Small.of(config, build)
    assert cache is not None
    assert cache.keep(model, build, []) is None


def test_a_program_that_is_done_before_its_weights_are_written_waits_for_them(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from types import SimpleNamespace as Any\n"
        "from corefw.models.weights_cache import cache\n"
        "cache.snapshot = lambda model: ({}, [Any(nbytes=1 << 30)])\n"
        "one = object.__new__(cache.WeightsCache)\n"
        "one._key, one._store = 'a', Any(keep=lambda *_: (time.sleep(0.3), Path(sys.argv[1]).touch()))\n"
        "build = Any(binder=Any(preparers_without_form=lambda: ()))\n"
        "assert one.keep(Any(can_be_restored=True), build, ()).is_alive()"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "written")], check=True)
    assert (tmp_path / "written").exists()
