"""What has to be set before any test runs, or imports torch."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Generator, Iterator

import pytest

from corefw import env
from corefw.host import Host

os.environ.update(env.child_environment())

# Workers beside each other share the cores: threads of two, and of the servers that they start, would mostly wait.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _WORKERS > 1 and not env.num_threads_are_chosen():
    os.environ["OMP_NUM_THREADS"] = str(max(1, Host().usable_cpus() // _WORKERS))

# A shell starts what runs in its background with SIGINT ignored, and children inherit that; here they are to notice it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test wrote may hold what no encoding takes; its report still has to reach the process that counts."""
    report = yield
    report.sections = [(title, _encodable(text)) for title, text in report.sections]
    if report.failed and _encodable(str(report.longrepr)) != str(report.longrepr):
        report.longrepr = _encodable(str(report.longrepr))
    return report


@pytest.fixture(autouse=True)
def untouched_loggers() -> Iterator[None]:
    """A test that starts a server in this process leaves a handler, whose stream ends with the test."""
    kept = {
        name: (logging.getLogger(name).handlers, logging.getLogger(name).level) for name in ("corefw", "uvicorn.error")
    }
    of_root = logging.getLogger().handlers
    yield
    logging.captureWarnings(False)
    logging.getLogger().handlers = of_root
    for name, (handlers, level) in kept.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, True
        logger.setLevel(level)


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
