"""The core's log has the form that its parent asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from corefw.engine.async_engine import AsyncEngine
from corefw.engine.process import CoreProcess
from corefw.errors import EngineError
from tests.engine.fake_engine import config
from tests.engine.leftovers import nothing_left, short_directory


@pytest.fixture
def sockets_in() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched, short_directory(patched) as directory:
        yield directory


async def test_as_json_a_traceback_of_the_core_is_one_record(
    capfd: pytest.CaptureFixture[str], sockets_in: Path
) -> None:
    with nothing_left(sockets_in):
        process = CoreProcess.spawn(preload=())
        try:
            process.configure(config(), log_level="INFO", log_format="json")
            engine = AsyncEngine(await process.connect())
            with pytest.raises(EngineError, match="TypeError"):
                await engine.call("stats", "one argument too many")
            await engine.shutdown()
        finally:
            process.close()
    entries = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (entry,) = [entry for entry in entries if entry["level"] != "INFO"]
    assert (entry["process"], entry["level"], entry["message"]) == ("core", "ERROR", "call of stats failed")
    assert entry["exception"].startswith("Traceback (most recent call last):\n")
