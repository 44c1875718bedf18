"""General plugins reach every process of an engine, whichever way it is run."""

from __future__ import annotations

import pytest

from tests.plugin_system.conftest import Site

_PREPARE = """
import asyncio, dataclasses, os
from corefw.engine.process import CoreProcess
from corefw.engine.llm_engine import LLMEngine
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config

plugins = PluginManager.discover({allow!r})
plugins.load_general("front_end")
"""

_IN_PROCESS = """
LLMEngine(fake_config(resolved=plugins.resolved()), plugins).shutdown()
print(os.getpid(), "front_end")
"""

_TWO_PROCESSES = """
async def main():
    core = CoreProcess.spawn(preload=())
    core.configure(fake_config(resolved={resolved}))
    client = await core.connect()
    print(os.getpid(), "front_end")
    print(core.pid, "engine_core")
    await client.stop(5.0)

asyncio.run(main())
"""


@pytest.mark.parametrize("engine", [_IN_PROCESS, _TWO_PROCESSES.format(resolved="plugins.resolved()")])
@pytest.mark.parametrize("allow", [None, "process_log"])
def test_each_process_loads_a_general_plugin_once(site: Site, allow: str | None, engine: str) -> None:
    site.install("general")
    log = site.path / "log"
    expected = site.output(_PREPARE.format(allow=allow) + engine, COREFW_SAMPLE_LOG=str(log)).splitlines()
    assert log.read_text(encoding="utf-8").splitlines() == expected


def test_a_plugin_that_may_not_load_is_loaded_nowhere(site: Site) -> None:
    site.install("general")
    log = site.path / "log"
    code = _PREPARE.format(allow="") + _TWO_PROCESSES.format(resolved="plugins.resolved()")
    assert len(site.output(code, COREFW_SAMPLE_LOG=str(log)).splitlines()) == 2
    assert not log.exists()


def test_a_core_that_finds_other_plugins_than_its_parent_does_not_start(site: Site) -> None:
    site.install("general")
    other = "tuple(dataclasses.replace(p, version='9.9') for p in plugins.resolved())"
    done = site.run(_PREPARE.format(allow="") + _TWO_PROCESSES.format(resolved=other))
    assert done.returncode != 0
    assert "EngineStartError: the plugins of this process differ from its parent's" in done.stderr
