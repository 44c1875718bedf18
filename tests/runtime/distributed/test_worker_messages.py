from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from corefw.errors import PluginError
from corefw.interfaces.executor import WorkerReport
from corefw.interfaces.kv_cache import FullAttentionSpec, SlidingWindowSpec
from corefw.messages.codec import Codec
from corefw.runtime.distributed.worker_messages import Answer, LayerSpec, RankReport

_SHAPE = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": "float32"}


def test_a_report_arrives_equal_with_its_specs() -> None:
    report = WorkerReport(
        kv_cache_specs={
            "layers.0": FullAttentionSpec(**_SHAPE),
            "layers.1": SlidingWindowSpec(**_SHAPE, sliding_window=21),
            "layers.2": FullAttentionSpec(**_SHAPE, tokens_per_state=Fraction(1, 3)),
        },
        available_kv_bytes=12345,
        attention_backend="torch",
        decisions=(("op", "torch", "the only one"),),
    )
    codec = Codec(Answer)
    arrived = codec.decode(codec.encode(Answer(report=RankReport.of(report)))).report
    assert arrived is not None
    assert arrived.report() == report
    assert list(arrived.report().kv_cache_specs) == ["layers.0", "layers.1", "layers.2"]


@pytest.mark.parametrize("spec_class", ["os:system", "no.such.module:Spec", "corefw.interfaces.kv_cache:Nothing"])
def test_a_spec_of_a_class_that_is_none_is_refused(spec_class: str) -> None:
    layer = LayerSpec.of("layers.0", FullAttentionSpec(**_SHAPE))
    with pytest.raises(PluginError, match=r"layers\.0"):
        msgspec.structs.replace(layer, spec_class=spec_class).spec()
