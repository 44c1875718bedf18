from __future__ import annotations

import pytest

from corefw.errors import ConfigError
from corefw.interfaces.attention import AttentionBackend, Capabilities
from corefw.runtime.block_size import choose_block_size
from tests.runtime.context_model import ContextBackend


def backend(name: str, *sizes: int, default: int = 16) -> type[AttentionBackend]:
    declared = Capabilities(
        device_types=frozenset({"cpu"}),
        dtypes=frozenset({"float32"}),
        kv_dtypes=frozenset({"float32"}),
        block_sizes=sizes,
        default_block_size=default,
    )
    return type(name, (ContextBackend,), {"name": name, "capabilities": declared})


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        ([backend("any")], 16),
        ([backend("any", default=32)], 32),
        ([backend("some", 64, 128)], 64),
        ([backend("any"), backend("some", 8, 64)], 64),
        ([backend("one", 16, 32, 64), backend("two", 32, 64)], 32),
    ],
)
def test_the_smallest_that_every_backend_takes(backends: list[type[AttentionBackend]], expected: int) -> None:
    assert choose_block_size(None, backends) == expected


def test_a_given_size_is_taken_where_every_backend_takes_it() -> None:
    assert choose_block_size(5, [backend("any")]) == 5
    assert choose_block_size(64, [backend("any"), backend("some", 32, 64)]) == 64


def test_a_given_size_that_a_backend_does_not_take_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="--block-size 16 isn't accepted by attention backend some; use one of 32"):
        choose_block_size(16, [backend("any"), backend("some", 32, 64)])


def test_backends_that_have_no_size_in_common_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"no KV block size suits every .* in use \(one: 16; two: 32\)"):
        choose_block_size(None, [backend("one", 16), backend("two", 32)])
