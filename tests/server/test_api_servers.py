from __future__ import annotations

from corefw.config.engine_config import ServerConfig
from corefw.server.api_servers import part_of


def test_limits_of_the_whole_are_shared_out() -> None:
    whole = ServerConfig(api_server_count=3, max_concurrent_requests=10, max_body_bytes=1024, max_total_body_bytes=9000)
    parts = [part_of(whole, index) for index in range(3)]
    assert [part.max_concurrent_requests for part in parts] == [4, 4, 4]
    assert [part.total_body_bytes for part in parts] == [3000] * 3


def test_a_part_still_takes_the_largest_body() -> None:
    whole = ServerConfig(api_server_count=4, max_body_bytes=4096, max_total_body_bytes=4096)
    assert part_of(whole, 0).total_body_bytes == 4096


def test_one_of_them_logs_the_engine_s_figures() -> None:
    whole = ServerConfig(api_server_count=3)
    assert [part_of(whole, index).disable_log_stats for index in range(3)] == [False, True, True]
