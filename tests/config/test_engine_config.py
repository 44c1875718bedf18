from __future__ import annotations

import pytest

from corefw.config.engine_config import CacheConfig, SchedulerConfig
from corefw.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"watermark": 1.0}, "--watermark must be at least 0 and below 1, got 1"),
        ({"watermark": -0.1}, r"--watermark must be in \[0, 1\], got -0.1"),
        ({"max_num_seqs": 4, "max_num_active_seqs": 5}, "at most --max-num-seqs 4, got 5"),
        ({"max_num_active_seqs": 0}, r"--max-num-active-seqs must be in \[1, 65536\], got 0"),
        ({"long_prefill_token_threshold": -1}, r"--long-prefill-token-threshold must be in \[0, 1048576\], got -1"),
        (
            {"long_prefill_token_threshold": 5, "enable_chunked_prefill": False},
            "--long-prefill-token-threshold 5 cuts prompts, which --no-enable-chunked-prefill forbids",
        ),
        (
            {"adaptive_long_prefill_threshold": True},
            "--adaptive-long-prefill-threshold needs --long-prefill-token-threshold",
        ),
    ],
)
def test_a_setting_of_the_scheduler_that_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**settings)  # type: ignore[arg-type]


def test_an_unknown_dtype_of_the_cache_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="'fp3' is unknown; use one of auto, float32, bfloat16, float16, int8"):
        CacheConfig(kv_cache_dtype="fp3")


def test_events_of_a_cache_that_is_off_are_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-events tells of the prefix cache"):
        CacheConfig(kv_events=True, enable_prefix_caching=False)
