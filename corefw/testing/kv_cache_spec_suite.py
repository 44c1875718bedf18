"""Conformance suite of KV-cache specs and the rules for their blocks."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, ClassVar

from corefw.interfaces.kv_cache import FullAttentionSpec, KVCacheSpec, KVCacheSpecPlugin
from corefw.testing.suite import NotChecked, PluginSuite

__all__ = ["KVCacheSpecSuite"]

_SIZES: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 8, "dtype": "float32"}
_NUM_TOKENS = 100


class KVCacheSpecSuite(PluginSuite):
    """For ``corefw.kv_cache_specs``."""

    plugin: ClassVar[type[KVCacheSpecPlugin]]
    group = "kv_cache_specs"

    def spec(self) -> KVCacheSpec:
        """A spec to check with; override it where it has more fields than ``FullAttentionSpec``."""
        try:
            return self.plugin.spec_class(**_SIZES)
        except TypeError as error:
            raise NotChecked(f"its spec takes other fields, return one from spec(): {error}") from None

    def test_it_is_called_by_its_own_name(self) -> None:
        """It has none: it is found by the spec's class."""
        assert issubclass(self.plugin.spec_class, KVCacheSpec)

    def test_a_spec_is_frozen_and_takes_room(self) -> None:
        spec = self.spec()
        assert spec.page_bytes > 0
        assert spec.max_memory_bytes(_NUM_TOKENS) >= spec.page_bytes
        assert dataclasses.is_dataclass(spec)
        assert hash(spec) == hash(self.spec()), "a spec must be frozen: equal ones have equal hashes"

    def test_longer_sequences_never_need_fewer_blocks(self) -> None:
        plugin, spec = self.plugin(), self.spec()
        counts = [plugin.num_blocks_for(spec, number) for number in range(1, _NUM_TOKENS)]
        assert counts == sorted(counts)
        assert counts[0] >= 1

    def test_blocks_that_are_left_behind_stay_so(self) -> None:
        plugin, spec = self.plugin(), self.spec()
        skipped = [plugin.skippable_blocks(spec, number) for number in range(_NUM_TOKENS)]
        assert skipped == sorted(skipped), "a block that no token reads can't be read again later"
        assert all(count * spec.block_size <= number for number, count in enumerate(skipped)), (
            "it skips what isn't there"
        )

    def test_it_takes_from_the_cache_what_is_there(self) -> None:
        plugin, spec, chance = self.plugin(), self.spec(), random.Random(0)
        for _ in range(200):
            cached = [chance.random() < 0.8 for _ in range(chance.randrange(0, 20))]
            most = chance.randrange(0, 80)
            taken = plugin.reusable_prefix_blocks(spec, cached, most)
            assert 0 <= taken <= len(cached)
            assert taken * spec.block_size <= most, f"takes {taken} blocks where {most} tokens are allowed"
            needed = cached[plugin.skippable_blocks(spec, taken * spec.block_size) : taken]
            assert all(needed), f"counts on blocks that aren't cached: {cached}, takes {taken}"

    def test_a_request_holds_no_more_than_its_blocks(self) -> None:
        plugin, spec = self.plugin(), self.spec()
        for number in (1, 10, _NUM_TOKENS):
            held = plugin.max_blocks_held(spec, number, 16)
            assert 1 <= held <= plugin.num_blocks_for(spec, number)

    def test_equal_specs_share_a_group(self) -> None:
        plugin = self.plugin()
        assert plugin.group_key(self.spec()) == plugin.group_key(self.spec())
        assert hash(plugin.group_key(self.spec())) is not None

    def test_it_serves_its_own_class_alone(self) -> None:
        own = self.plugin.spec_class
        assert own is not KVCacheSpec, "it would serve every spec"
        assert own is not FullAttentionSpec or self.plugin.__module__.startswith("corefw."), "the core serves that one"
