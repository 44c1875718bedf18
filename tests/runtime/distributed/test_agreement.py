from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from corefw.config.engine_config import EngineConfig, ResolvedPlugin
from corefw.config.rank_grid import RankGrid
from corefw.errors import ConfigError
from corefw.plugin_system.manager import PluginManager
from corefw.runtime.distributed.agreement import check_agreement, described, differences
from corefw.runtime.distributed.groups import RankGroups
from tests.runtime.distributed.ranks import on_each_rank
from tests.runtime.engines import tiny_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return tiny_config(tmp_path_factory.mktemp("models"), PluginManager.discover(""))


def _told(*configs: EngineConfig) -> list[str]:
    """What each rank raises, empty for nothing."""

    def work(groups: RankGroups) -> str:
        try:
            check_agreement(groups.world, configs[groups.place.rank])
        except ConfigError as error:
            return str(error)
        return ""

    return on_each_rank(RankGrid(tensor=len(configs)), work)


def _with_plugin(config: EngineConfig, version: str) -> EngineConfig:
    extra = ResolvedPlugin(
        group="general_plugins", name="house", value="house.hooks", distribution="acme-house", version=version
    )
    plugins = dataclasses.replace(config.plugins, resolved=(*config.plugins.resolved, extra))
    return dataclasses.replace(config, plugins=plugins)


def test_equal_ranks_start_wherever_their_files_lie(config: EngineConfig) -> None:
    files = dataclasses.replace(config.model_info.files, weights=("/elsewhere/model.safetensors",))
    moved = dataclasses.replace(config, model_info=dataclasses.replace(config.model_info, files=files))
    assert _told(config, moved, dataclasses.replace(config, decisions=(), fingerprint="")) == ["", "", ""]


def test_plugin_sets_that_differ_are_refused_on_every_rank_with_the_difference(config: EngineConfig) -> None:
    told = _told(_with_plugin(config, "1.0"), _with_plugin(config, "1.1"), config)
    expected = (
        "plugin 'house' (general_plugins) is house.hooks of acme-house 1.0 on rank 0, house.hooks of acme-house 1.1 on "
        "rank 1, absent on rank 2"
    )
    assert [expected in each for each in told] == [True, True, True]


def test_a_plugin_s_settings_are_compared_and_not_shown(config: EngineConfig) -> None:
    first, second = (
        dataclasses.replace(config, plugin_settings={"house": {"password": password}}) for password in ("cat", "dog")
    )
    (told, _) = _told(first, second)
    assert "plugin_settings is something with hash" in told
    assert "cat" not in told
    assert "dog" not in told


def test_of_many_differences_some_are_shown(config: EngineConfig) -> None:
    other = {name: f"{value} too" for name, value in described(config).items()}
    assert len(differences([described(config), other])) == len(other)
    shown = dataclasses.replace(config, dtype="bfloat16", platform="x", tokenizer_size=1, model_implementation="y")
    shown = dataclasses.replace(shown, scheduler=dataclasses.replace(shown.scheduler, max_num_seqs=3))
    shown = dataclasses.replace(shown, cache=dataclasses.replace(shown.cache, block_size=8))
    assert "; and 1 more. Install and set the same on every rank" in _told(config, shown)[0]


def test_every_option_is_compared(config: EngineConfig) -> None:
    names = described(config)
    for section in ("model", "load", "cache", "scheduler", "parallel", "compilation", "kv_transfer", "frontend"):
        for field in dataclasses.fields(getattr(config, section)):
            assert any(
                name == f"{section}.{field.name}" or name.startswith(f"{section}.{field.name}.") for name in names
            )
    assert Path(config.model.model).name in names["model.model"]
