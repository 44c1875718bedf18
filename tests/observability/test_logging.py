"""The log is one line an event, with the process it came from."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from corefw.observability.logging import configure_logging, get_logger


@pytest.fixture(autouse=True)
def untouched_loggers() -> Iterator[None]:
    kept = {
        name: (logging.getLogger(name).handlers, logging.getLogger(name).level) for name in ("corefw", "uvicorn.error")
    }
    yield
    for name, (handlers, level) in kept.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, True
        logger.setLevel(level)


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
