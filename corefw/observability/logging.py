"""Log set-up: one record an event, on standard error, with the process it came from."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

__all__ = [
    "configure_logging",
    "get_logger",
    "logging_settings",
    "plugin_logger",
    "set_log_level",
    "set_request_id",
]

# Libraries whose records belong into the same log.
_LOGGERS = ("corefw", "uvicorn.error")
_FORMAT = "%(asctime)s %(levelname)s {process} %(message)s"
_PLUGINS = "corefw.plugins."
_REQUEST_ID: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)


def configure_logging(level: str, process: str, log_format: str = "text") -> None:
    """Send corefw's records to standard error. May be called again to change the level.

    As JSON every record is one line with its traceback in it, and so is what other libraries and ``warnings`` say.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        process: short name that every record carries (``front-end``, ``core``).
        log_format: ``text`` or ``json``.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter(process))
        logging.getLogger().handlers = [handler]
        logging.captureWarnings(True)
    else:
        handler.setFormatter(_TextFormatter(_FORMAT.format(process=process), datefmt="%m-%d %H:%M:%S"))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers = [handler]
    logging.getLogger("corefw").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLevelName(level)))


def set_log_level(level: str) -> None:
    """Change the level of this process's records while it runs."""
    logging.getLogger("corefw").setLevel(level)
    get_logger(__name__).info("the log level is %s from now on", level)


def logging_settings() -> tuple[str, str]:
    """Level and form of this process's records, for a child to have the same."""
    logger = logging.getLogger("corefw")
    is_json = any(isinstance(handler.formatter, _JsonFormatter) for handler in logger.handlers)
    return logging.getLevelName(logger.getEffectiveLevel()), "json" if is_json else "text"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; pass ``__name__``."""
    return logging.getLogger(name)


def plugin_logger(name: str) -> logging.Logger:
    """The logger of a plugin's module; pass ``__name__``.

    Its records are in corefw's log, at corefw's level and in its form, in every process: as text behind the name in
    brackets, as JSON with the name as ``plugin``.
    """
    return logging.getLogger(name if name.startswith("corefw.") else _PLUGINS + name)


def _plugin_of(record: logging.LogRecord) -> str | None:
    return record.name.removeprefix(_PLUGINS) if record.name.startswith(_PLUGINS) else None


def set_request_id(request_id: str) -> None:
    """Let the records that the current task writes from now on carry the id, where their form has a place for it."""
    _REQUEST_ID.set(request_id)


class _TextFormatter(logging.Formatter):
    """Lines to read. A plugin's begin with its name."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class's name
        """The first line."""
        plugin = _plugin_of(record)
        if plugin is not None:
            record.message = f"[{plugin}] {record.message}"
        return super().formatMessage(record)


class _JsonFormatter(logging.Formatter):
    """One object a line: time, level, process, logger, message; exception, request_id and plugin where there is one.

    A record's ``fields`` (``extra={"fields": {...}}``) are members of their own.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = _REQUEST_ID.get()
        if request_id is not None:
            entry["request_id"] = request_id
        plugin = _plugin_of(record)
        if plugin is not None:
            entry["plugin"] = plugin
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        fields = getattr(record, "fields", None) or {}
        return json.dumps({**fields, **entry}, default=str)
