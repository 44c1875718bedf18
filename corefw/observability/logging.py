"""Log set-up: one line an event, on standard error, with the process it came from."""

from __future__ import annotations

import logging
import sys

__all__ = ["configure_logging", "get_logger"]

# Libraries whose records belong into the same log.
_LOGGERS = ("corefw", "uvicorn.error")
_FORMAT = "%(asctime)s %(levelname)s {process} %(message)s"


def configure_logging(level: str, process: str) -> None:
    """Send corefw's records to standard error. May be called again to change the level.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        process: short name that every line carries (``front-end``, ``core``).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(process=process), datefmt="%m-%d %H:%M:%S"))
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers = [handler]
    logging.getLogger("corefw").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLevelName(level)))


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; pass ``__name__``."""
    return logging.getLogger(name)
