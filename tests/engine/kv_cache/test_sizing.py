from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from fractions import Fraction

import pytest

from corefw.config.engine_config import CacheConfig, EngineConfig, SchedulerConfig
from corefw.config.model_info import ModelInfo
from corefw.engine.kv_cache.sizing import plan_runtime
from corefw.errors import ConfigError
from corefw.interfaces.executor import WorkerReport
from corefw.interfaces.kv_cache import KVCacheSpec, SlidingWindowSpec
from tests.engine.kv_cache.layouts import full_spec
from tests.engine.scheduler.setup import make_config, plugins

PAGE_BYTES = 64  # of full_spec(): 4 tokens, keys and values, 2 elements of 4 bytes


def report(available: int, **layers: KVCacheSpec) -> WorkerReport:
    specs = layers or {"layer0": full_spec(), "layer1": full_spec()}
    return WorkerReport(kv_cache_specs=dict(specs), available_kv_bytes=available, attention_backend="torch")


def cache_config(max_model_len: int | None = None, **cache: int) -> EngineConfig:
    return make_config(cache=CacheConfig(**cache), max_model_len=max_model_len)  # type: ignore[arg-type]


def with_positions(num_positions: int) -> ModelInfo:
    return dataclasses.replace(make_config().model_info, max_position=num_positions)


def test_a_block_takes_a_page_in_every_layer() -> None:
    plan, specs = plan_runtime(make_config(), [report(50 * 2 * PAGE_BYTES + 17)], plugins())
    assert (plan.num_blocks, plan.block_size, plan.kv_cache_bytes) == (50, 4, 50 * 2 * PAGE_BYTES)
    assert plan.layer_groups == (("layer0", "layer1"),)
    assert specs == [full_spec()]
    assert plan.attention_backend == "torch"


def test_the_rank_with_the_least_room_decides_for_all() -> None:
    narrow = report(100 * 2 * PAGE_BYTES)
    # Two KV heads a layer on this rank, so that the same memory holds half as many blocks.
    wide = report(60 * 2 * PAGE_BYTES, layer0=full_spec(num_kv_heads=2), layer1=full_spec(num_kv_heads=2))
    plan, _ = plan_runtime(make_config(), [narrow, wide], plugins())
    assert plan.num_blocks == 30
    assert plan.kv_cache_bytes == 30 * 4 * PAGE_BYTES


def test_a_rank_without_attention_layers_does_not_limit() -> None:
    bare = WorkerReport(kv_cache_specs={}, available_kv_bytes=0, attention_backend="torch")
    plan, _ = plan_runtime(make_config(), [report(20 * 2 * PAGE_BYTES), bare], plugins())
    assert plan.num_blocks == 20


def test_layers_of_all_ranks_are_in_the_plan_once_each() -> None:
    first, second = report(10**6, a=full_spec(), b=full_spec()), report(10**6, b=full_spec(), c=full_spec())
    plan, _ = plan_runtime(make_config(), [first, second], plugins())
    assert plan.layer_groups == (("a", "b", "c"),)


def test_layers_with_pages_of_another_size_have_a_group_of_their_own() -> None:
    plan, specs = plan_runtime(make_config(), [report(10**6, a=full_spec(), b=full_spec(num_kv_heads=2))], plugins())
    assert plan.layer_groups == (("a",), ("b",))
    assert [spec.page_bytes for spec in specs] == [PAGE_BYTES, 2 * PAGE_BYTES]


def test_a_layer_that_is_of_another_kind_on_another_rank_is_refused() -> None:
    reports = [report(10**6, a=full_spec(4)), report(10**6, a=full_spec(8))]
    with pytest.raises(ConfigError, match="layer a has another kind of KV cache on rank 1"):
        plan_runtime(make_config(), reports, plugins())


def test_groups_are_hashed_in_blocks_that_divide_all_of_theirs() -> None:
    plan, _ = plan_runtime(make_config(), [report(10**6, a=full_spec(4), b=full_spec(6))], plugins())
    assert plan.block_size == 2


def test_given_memory_replaces_what_was_measured() -> None:
    plan, _ = plan_runtime(cache_config(kv_cache_memory=30 * 2 * PAGE_BYTES), [report(10**9)], plugins())
    assert plan.num_blocks == 30
    assert ("num_blocks", "30", "3840 bytes (--kv-cache-memory), 128 a block") in plan.decisions


def test_a_given_number_of_blocks_replaces_all_memory() -> None:
    config = cache_config(kv_cache_memory=10**6, num_gpu_blocks_override=17)
    plan, _ = plan_runtime(config, [report(10**9)], plugins())
    assert plan.num_blocks == 17


@pytest.mark.parametrize("available", [-5, 0, 2 * PAGE_BYTES, 4 * PAGE_BYTES - 1])
def test_memory_for_fewer_than_two_blocks_stops_the_start_with_the_figures(available: int) -> None:
    with pytest.raises(ConfigError, match=rf"at least 2 blocks of 128 bytes and has {max(0, available)} bytes"):
        plan_runtime(make_config(), [report(available)], plugins())


def test_two_blocks_are_enough() -> None:
    plan, _ = plan_runtime(make_config(), [report(4 * PAGE_BYTES)], plugins())
    assert (plan.num_blocks, plan.max_model_len) == (2, 4)


def test_a_declared_length_is_shortened_to_what_one_request_can_hold_and_that_is_said() -> None:
    plan, _ = plan_runtime(cache_config(num_gpu_blocks_override=11), [report(10**9)], plugins())
    assert plan.max_model_len == 40
    (decision,) = [each for each in plan.decisions if each[0] == "max_model_len"]
    assert decision[1] == "40"
    assert (
        "the model declares 64, but 64 tokens need 16 KV blocks (2048 bytes), usable are 10 (1280 bytes)" in decision[2]
    )


def test_a_length_that_fits_is_left_alone_without_a_word() -> None:
    plan, _ = plan_runtime(cache_config(num_gpu_blocks_override=17), [report(10**9)], plugins())
    assert plan.max_model_len == 64
    assert [what for what, _, _ in plan.decisions] == ["num_blocks"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_context_that_is_much_shorter_than_the_models_is_a_warning_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = dataclasses.replace(cache_config(kv_cache_memory=11 * 2 * PAGE_BYTES), model_info=with_positions(2**20))
    plan_runtime(config, [report(10**9)], plugins())
    (told,) = warnings_of(caplog)
    assert "only 40 tokens long" in told
    assert f"the model's own is {2**20}. Raise --kv-cache-memory (or free memory), to 33MiB" in told
    caplog.clear()
    enough = dataclasses.replace(cache_config(kv_cache_memory=33 * 2**20), model_info=with_positions(2**20))
    assert plan_runtime(enough, [report(10**9)], plugins())[0].max_model_len == 2**20
    assert warnings_of(caplog) == []


def test_a_context_that_is_a_little_shorter_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(cache_config(num_gpu_blocks_override=200), model_info=with_positions(1000))
    assert plan_runtime(config, [report(10**9)], plugins())[0].max_model_len == 796
    assert warnings_of(caplog) == []
    short = dataclasses.replace(cache_config(num_gpu_blocks_override=100), model_info=with_positions(1000))
    plan_runtime(short, [report(10**9)], plugins())
    assert "Leave out --num-gpu-blocks-override or raise it, to 251 for all of it" in warnings_of(caplog)[0]


def test_a_length_that_the_user_set_is_never_shortened_but_refused_with_figures_and_remedy() -> None:
    config = cache_config(60, kv_cache_memory=8 * 2 * PAGE_BYTES)
    with pytest.raises(ConfigError) as caught:
        plan_runtime(config, [report(10**9)], plugins())
    message = str(caught.value)
    assert "60 tokens need 15 KV blocks (1920 bytes), usable are 7 (896 bytes)" in message
    assert "the longest that fits is 28" in message
    assert "--kv-cache-memory" in message
    assert "--max-model-len" in message


def test_the_remedy_names_the_override_when_that_is_the_cause() -> None:
    with pytest.raises(ConfigError, match="Raise or leave out --num-gpu-blocks-override"):
        plan_runtime(cache_config(60, num_gpu_blocks_override=5), [report(10**9)], plugins())


def test_the_suggested_length_really_fits() -> None:
    plan, _ = plan_runtime(cache_config(28, kv_cache_memory=8 * 2 * PAGE_BYTES), [report(10**9)], plugins())
    assert plan.max_model_len == 28


def test_a_cache_for_a_single_token_stops_the_start() -> None:
    tiny = full_spec(block_size=1)
    with pytest.raises(ConfigError, match="the longest that fits is 1, at least 2 make sense"):
        plan_runtime(cache_config(num_gpu_blocks_override=2), [report(10**9, a=tiny)], plugins())


def test_a_spec_without_a_plugin_stops_the_start() -> None:
    @dataclass(frozen=True, kw_only=True)
    class StateSpec(KVCacheSpec):
        tokens_per_state: int | Fraction = 8

        @property
        def page_bytes(self) -> int:
            return 8

        def max_memory_bytes(self, max_model_len: int) -> int:
            return 8

    with pytest.raises(ConfigError, match="StateSpec"):
        plan_runtime(make_config(), [report(10**6, a=StateSpec(block_size=4))], plugins())


@pytest.mark.parametrize(
    "reports", [[], [WorkerReport(kv_cache_specs={}, available_kv_bytes=1, attention_backend="t")]]
)
def test_a_model_without_any_kv_cache_is_refused(reports: list[WorkerReport]) -> None:
    with pytest.raises(ConfigError, match="KV"):
        plan_runtime(make_config(), reports, plugins())


def test_decisions_of_the_worker_come_first() -> None:
    said = ("attention_backend", "torch", "the only one")
    specs = {"a": full_spec()}
    told = WorkerReport(kv_cache_specs=specs, available_kv_bytes=10**6, attention_backend="torch", decisions=(said,))
    plan, _ = plan_runtime(make_config(), [told], plugins())
    assert plan.decisions[0] == said


# Layers with and without a window


def window_spec(window: int = 6, num_kv_heads: int = 1) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=4, num_kv_heads=num_kv_heads, head_size=2, dtype="float32", sliding_window=window
    )


def mixed(num_full: int, num_window: int) -> dict[str, KVCacheSpec]:
    windows = {f"w{index}": window_spec() for index in range(num_window)}
    return {**windows, **{f"f{index}": full_spec() for index in range(num_full)}}


@pytest.mark.parametrize(
    ("num_full", "num_window", "sizes"),
    [
        (2, 10, [2, 2, 2, 2, 2, 2]),
        (3, 3, [3, 3]),
        (4, 5, [5, 4]),  # nearly equal: a page left unused costs less than another table
        (2, 5, [2, 2, 1, 2]),
        (0, 5, [5]),
    ],
)
def test_layers_of_several_kinds_are_cut_into_groups_of_the_rarest_kinds_size(
    num_full: int, num_window: int, sizes: list[int]
) -> None:
    plan, specs = plan_runtime(make_config(), [report(10**6, **mixed(num_full, num_window))], plugins())
    assert [len(group) for group in plan.layer_groups] == sizes
    assert len(specs) == len(sizes)
    assert plan.kv_cache_bytes == plan.num_blocks * max(sizes) * PAGE_BYTES


def test_groups_are_told_with_their_sizes() -> None:
    plan, _ = plan_runtime(make_config(), [report(10**6, **mixed(1, 2))], plugins())
    assert ("kv_cache_groups", "3", "2 of 1 layers (SlidingWindow), 1 of 1 layers (FullAttention)") in plan.decisions


def test_groups_with_pages_of_another_size_have_memory_of_their_own() -> None:
    layers = {"w": window_spec(num_kv_heads=2), "f": full_spec()}
    plan, _ = plan_runtime(make_config(), [report(10 * 3 * PAGE_BYTES, **layers)], plugins())
    assert plan.num_blocks == 10
    assert plan.kv_cache_bytes == 10 * 3 * PAGE_BYTES


def test_a_window_lets_a_longer_context_fit() -> None:
    config = dataclasses.replace(
        cache_config(num_gpu_blocks_override=17), scheduler=SchedulerConfig(max_num_batched_tokens=4)
    )
    full, _ = plan_runtime(config, [report(10**9, a=full_spec(), b=full_spec(num_kv_heads=2))], plugins())
    mixed_plan, _ = plan_runtime(config, [report(10**9, **mixed(1, 1))], plugins())
    assert full.max_model_len == 32
    # A step of 4 tokens and the window's 5 before it touch 4 blocks at most; 12 are left for the other layer.
    assert mixed_plan.max_model_len == 48


def test_a_context_without_room_for_prompt_and_output_is_refused_with_the_least() -> None:
    with pytest.raises(ConfigError, match=r"a context of 1 .* at least 2 tokens"):
        plan_runtime(cache_config(max_model_len=1), [report(10**9)], plugins())
