"""The core's log has the form that its parent asked for."""

from __future__ import annotations

import json

import pytest

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.process import CoreProcess
from corefw.errors import EngineError
from tests.engine.fake_engine import config
from tests.engine.leftovers import nothing_left, short_directory


async def test_as_json_a_traceback_of_the_core_is_one_record(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with short_directory(monkeypatch) as directory, nothing_left(directory):
        process = CoreProcess.spawn(preload=())
        try:
            process.configure(config(), log_level="INFO", log_format="json")
            engine = AsyncEngine(await process.connect())
            with pytest.raises(EngineError, match="TypeError"):
                await engine.call("stats", "one argument too many")
            await engine.shutdown()
        finally:
            process.close()
    (entry,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (entry["process"], entry["level"], entry["message"]) == ("core", "ERROR", "call of stats failed")
    assert entry["exception"].startswith("Traceback (most recent call last):\n")
