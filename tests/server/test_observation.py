"""What runs beside a server, and what doesn't."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.serving import scripted, serving


@pytest.mark.parametrize("disabled", [True, False])
def test_the_engines_state_is_logged_unless_that_is_switched_off(disabled: bool) -> None:
    with serving(scripted(), disable_log_stats=disabled) as server:
        names = {task.get_name() for task in asyncio.all_tasks(server.loop)}
        assert ("stats-log" in names) is not disabled
    assert "stats-log" not in {task.get_name() for task in asyncio.all_tasks(server.loop)}
