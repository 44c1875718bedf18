from __future__ import annotations

from dataclasses import dataclass

import pytest

from corefw.builtins.kv_cache_specs.full_attention import FullAttention
from corefw.engine.kv_cache.specs import SpecRegistry
from corefw.errors import ConfigError
from corefw.interfaces.kv_cache import KVCacheSpec
from corefw.plugin_system.manager import PluginManager
from tests.engine.kv_cache.layouts import WiderWindowSpec, Window, WindowSpec, full_spec, registry


@dataclass(frozen=True, kw_only=True)
class StateSpec(KVCacheSpec):
    @property
    def page_bytes(self) -> int:
        return 8

    def max_memory_bytes(self, max_model_len: int) -> int:
        return 8


def test_a_spec_finds_the_plugin_of_its_class() -> None:
    assert isinstance(registry().resolve(full_spec()), FullAttention)
    assert isinstance(registry().resolve(WindowSpec(block_size=4, window=8)), Window)


def test_a_spec_without_a_plugin_finds_that_of_its_nearest_ancestor() -> None:
    assert isinstance(registry().resolve(WiderWindowSpec(block_size=4, window=8)), Window)


def test_a_spec_without_any_registered_ancestor_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"StateSpec .*served: FullAttentionSpec, WindowSpec"):
        registry().resolve(StateSpec(block_size=4))


def test_two_plugins_for_one_spec_are_refused() -> None:
    class OtherWindow(Window):
        pass

    with pytest.raises(ConfigError, match="WindowSpec is served by two plugins, Window and OtherWindow"):
        SpecRegistry([Window(), OtherWindow()])


def test_the_built_in_spec_comes_in_through_its_group() -> None:
    found = SpecRegistry.from_plugins(PluginManager.discover()).resolve(full_spec())
    assert isinstance(found, FullAttention)
