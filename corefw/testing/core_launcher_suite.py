"""Conformance suite of core launchers: engines work, die, come back and end as on the built-in one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from corefw.config.engine_config import ResolvedPlugin
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.engine_processes import EngineProcesses
from corefw.engine.process import CoreProcess
from corefw.engine.restart_policy import RestartPolicy
from corefw.errors import EngineDeadError, EngineStartError
from corefw.interfaces.core_launcher import CoreLauncher
from corefw.messages.request import EngineCoreRequest
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config
from corefw.testing.fake_executor import fake_tokens
from corefw.testing.registration import installed_as
from corefw.testing.suite import PluginSuite

__all__ = ["CoreLauncherSuite"]

_PROMPT = [5, 6, 7]
_NUM_TOKENS = 40
_WAIT_S = 60.0


class CoreLauncherSuite(PluginSuite):
    """For ``corefw.core_launchers``. The engines have no model; they find this package where the launcher starts them.

    Override ``settings`` with what else the configuration has to say.
    """

    plugin: ClassVar[type[CoreLauncher]]
    group = "core_launchers"

    def settings(self) -> dict[str, Any]:
        """Fields of the configuration."""
        return {}

    def test_engines_answer_and_end(self) -> None:
        async def run() -> None:
            async with self._engine(data_parallel_size=2) as engine:
                assert await asyncio.gather(*(_tokens(engine, f"r{i}") for i in range(4))) == [_expected()] * 4
                assert len(engine.stats.engines) == 2, "one of two engines did everything"

        asyncio.run(run())

    def test_what_keeps_a_core_from_starting_is_told(self) -> None:
        async def run() -> None:
            try:
                async with self._engine(model="fake:error"):
                    raise AssertionError("a core that can't load its model counts as started")
            except EngineStartError as error:
                assert "told to fail" in str(error), f"the cause isn't told: {error}"

        asyncio.run(run())

    def test_a_core_without_the_front_ends_plugins_doesnt_start(self) -> None:
        foreign = ResolvedPlugin(group="schedulers", name="x", value="x:X", distribution="elsewhere", version="1")

        async def run() -> None:
            try:
                async with self._engine(resolved=(*_plugins().resolved(), foreign)):
                    raise AssertionError("a core that lacks a plugin counts as started")
            except EngineStartError as error:
                assert "elsewhere" in str(error), f"the plugin that is missing isn't told: {error}"

        asyncio.run(run())

    def test_a_core_that_dies_ends_what_it_computed_with_the_cause(self) -> None:
        async def run() -> None:
            async with self._engine() as engine:
                try:
                    await _tokens(engine, "r", crash_at=3)
                except EngineDeadError as error:
                    assert "SIGKILL" in str(error), f"how the core died isn't told: {error}"
                else:
                    raise AssertionError("a request outlived its core")

        asyncio.run(run())

    def test_a_core_that_dies_is_started_again_and_its_requests_go_on(self) -> None:
        async def run() -> None:
            async with self._engine(RestartPolicy()) as engine:
                poison = asyncio.ensure_future(_tokens(engine, "poison", crash_at=3))
                others = await asyncio.gather(*(_tokens(engine, f"r{i}") for i in range(3)))
                assert others == [_expected()] * 3, "requests didn't go on where they had stopped"
                # Whom it was computing when it died is read on its step board.
                assert await poison == _expected()[:3], "the request that kills the core isn't found"

        asyncio.run(run())

    def test_a_core_that_is_killed_has_ended(self) -> None:
        config = self._config()
        launcher = self.plugin(config, _plugins())
        try:
            process = CoreProcess(lambda board_fd: launcher.launch(0, board_fd))
            try:
                assert process.alive, "a core that has just been launched has ended"
                process.kill_soon()
                process.kill_soon()
                assert process.wait(_WAIT_S), "a core that was killed runs on"
                assert process.exit_text(), "it isn't told how the core ended"
            finally:
                process.close()
                process.close()
        finally:
            launcher.close()
            launcher.close()

    def _config(self, **overrides: Any) -> Any:
        return fake_config(**({"resolved": _plugins().resolved()} | self.settings() | overrides))

    @asynccontextmanager
    async def _engine(self, policy: RestartPolicy | None = None, **settings: Any) -> AsyncIterator[AsyncEngine]:
        with installed_as(self.group, self.name, self.plugin):
            config = self._config(data_parallel_backend=self.name, **settings)
            processes = EngineProcesses.spawn(config.parallel)
            try:
                processes.configure(config, self.plugin(config, _plugins()), log_level="ERROR")
                engine = AsyncEngine(await processes.connect(policy=policy))
                try:
                    yield engine
                finally:
                    await engine.shutdown()
            finally:
                processes.close()


def _plugins() -> PluginManager:
    return PluginManager.discover(allow="")


def _expected() -> list[int]:
    return fake_tokens(_PROMPT, _NUM_TOKENS)


async def _tokens(engine: AsyncEngine, request_id: str, **extra: Any) -> list[int]:
    params = SamplingParams(temperature=0, seed=1, max_tokens=_NUM_TOKENS)
    request = EngineCoreRequest(
        request_id=request_id, prompt_ids=list(_PROMPT), params=params, extra={"delay_s": 0.01, **extra}
    )
    return [token async for output in engine.submit(request) for token in output.new_token_ids]
