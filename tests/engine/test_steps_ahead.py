"""Whether steps are put together ahead."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.config.engine_config import KVTransferConfig, ParallelConfig, SchedulerConfig
from corefw.engine.steps_ahead import choose_steps_ahead
from corefw.errors import ConfigError
from corefw.plugin_system.manager import PluginManager


class DevicePlatform(CpuPlatform):
    """Its work isn't the host's."""

    name: ClassVar[str] = "device"
    computes_on_host: ClassVar[bool] = False


def choose(platform: CpuPlatform, **settings: Any) -> tuple[bool, tuple[str, str, str]]:
    sections = {
        kind: kind(**{name: value for name, value in settings.items() if name in kind.__dataclass_fields__})
        for kind in (SchedulerConfig, ParallelConfig, KVTransferConfig)
    }
    plugins = PluginManager.discover("")
    return choose_steps_ahead(*sections.values(), platform, plugins)  # type: ignore[arg-type]


def test_steps_are_put_together_ahead_where_the_device_and_the_executor_let_the_core_go_on() -> None:
    is_on, decision = choose(DevicePlatform(), distributed_executor_backend="mp")
    assert is_on
    assert decision[:2] == ("async scheduling", "on")
    assert "platform device computes beside the host" in decision[2]
    assert "executor mp returns before" in decision[2]


@pytest.mark.parametrize(
    ("platform", "settings", "reason"),
    [
        (CpuPlatform(), {"distributed_executor_backend": "mp"}, "platform cpu computes on the cores"),
        (DevicePlatform(), {"distributed_executor_backend": "uni"}, "executor-backend uni is done when it returns"),
        (
            DevicePlatform(),
            {"distributed_executor_backend": "mp", "pipeline_parallel_size": 2},
            "pipeline stages keep several",
        ),
        (DevicePlatform(), {"distributed_executor_backend": "mp", "kv_connector": "x"}, "a KV connector tells"),
        (DevicePlatform(), {"distributed_executor_backend": "a:B"}, "'a:B' isn't asked ahead"),
    ],
)
def test_where_that_cant_pay_it_is_off_and_the_decision_says_why(
    platform: CpuPlatform, settings: dict[str, Any], reason: str
) -> None:
    is_on, (_, chosen, why) = choose(platform, **settings)
    assert (is_on, chosen) == (False, "off")
    assert reason in why


@pytest.mark.parametrize("wanted", [True, False])
def test_what_the_user_says_goes_over_what_platform_and_executor_say(wanted: bool) -> None:
    for platform in (CpuPlatform(), DevicePlatform()):
        is_on, (_, _, why) = choose(platform, async_scheduling=wanted, distributed_executor_backend="mp")
        assert is_on is wanted
        assert why == ("set by --async-scheduling" if wanted else "set by --no-async-scheduling")


def test_asked_for_beside_a_kv_connector_it_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        choose(DevicePlatform(), async_scheduling=True, kv_connector="x")
