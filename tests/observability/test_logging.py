"""The log is one line an event, with the process it came from."""

from __future__ import annotations

import contextvars
import json
import logging
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from corefw.observability.logging import configure_logging, get_logger, set_request_id


def test_a_line_names_level_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "front-end")
    get_logger("corefw.x").info("chosen %s", "cpu")
    get_logger("corefw.x").debug("not shown")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO front-end chosen cpu")


def test_the_level_can_be_changed_without_doubling_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "core")
    configure_logging("DEBUG", "core")
    get_logger("corefw.x").debug("once")
    assert capsys.readouterr().err.count("once") == 1


def test_the_http_servers_warnings_come_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "front-end")
    logging.getLogger("uvicorn.error").warning("bad request line")
    logging.getLogger("uvicorn.error").info("Started server")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING front-end bad request line")


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_as_json_a_record_is_one_object_with_its_time_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "core", "json")
    before = datetime.now(UTC).replace(microsecond=0)
    get_logger("corefw.x").warning('line one\nline "two" %s', "é")
    (entry,) = json_lines(capsys)
    assert before <= datetime.fromisoformat(entry.pop("time")) <= datetime.now(UTC)
    assert entry == {
        "level": "WARNING",
        "process": "core",
        "logger": "corefw.x",
        "message": 'line one\nline "two" é',
    }


def test_as_json_a_traceback_is_part_of_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "core", "json")
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError:
        get_logger("corefw.x").exception("it failed")
    (entry,) = json_lines(capsys)
    assert entry["message"] == "it failed"
    assert entry["exception"].startswith("Traceback (most recent call last):\n")
    assert entry["exception"].endswith("ZeroDivisionError: x")


def test_as_json_a_record_has_the_id_of_the_request_that_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "core", "json")

    def write(request_id: str) -> None:
        set_request_id(request_id)
        get_logger("corefw.x").info("in it")

    for request_id in ("a", "b"):
        contextvars.copy_context().run(write, request_id)
    get_logger("corefw.x").info("outside")
    assert [entry.get("request_id") for entry in json_lines(capsys)] == ["a", "b", None]


def test_as_json_fields_are_members_and_never_replace_the_records_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "core", "json")
    get_logger("corefw.x").info("done", extra={"fields": {"status": 200, "path": Path("/x"), "level": "FORGED"}})
    (entry,) = json_lines(capsys)
    assert (entry["status"], entry["path"], entry["level"]) == (200, "/x", "INFO")


def test_as_json_other_libraries_and_warnings_write_objects_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "front-end", "json")
    logging.getLogger("asyncio").error("a task failed")
    logging.getLogger("uvicorn.error").warning("bad request line")
    with warnings.catch_warnings():
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.simplefilter("always")
        warnings.warn("take care", UserWarning, stacklevel=1)
    entries = json_lines(capsys)
    assert [entry["logger"] for entry in entries] == ["asyncio", "uvicorn.error", "py.warnings"]
    assert "take care" in entries[2]["message"]
