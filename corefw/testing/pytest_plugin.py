"""Fixtures for authors' tests; pytest finds them where corefw is installed. Nothing heavy is imported before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from corefw.interfaces.endpoint import Endpoint
    from corefw.testing.asgi_client import AsgiClient

__all__ = ["register_plugin", "serve_in_process", "tiny_model"]

RegisterPlugin = Callable[..., None]
ServeInProcess = Callable[..., "AsgiClient"]


@pytest.fixture
def register_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegisterPlugin]:
    """``register_plugin(group, name, value)``: a plugin that counts as installed until the test ends.

    ``value`` is a class, a function, a hook module, or the text of an entry point. Processes that the test starts find
    it too, where they can import it. ``VLLM_PLUGINS`` doesn't count meanwhile; what a group denies has to be allowed.
    """
    from corefw.testing.registration import registered

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    with ExitStack() as stack:

        def register(group: str, name: str, value: object, *, distribution: str | None = None) -> None:
            site = stack.enter_context(registered(group, name, value, distribution=distribution))
            monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

        yield register


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama that is loaded in no time; token ids up to 255 are bytes."""
    from corefw.testing.tiny_models import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def serve_in_process() -> Iterator[ServeInProcess]:
    """``serve_in_process(*endpoints, engine=…, …)``: a client of the whole app, over an engine that plays a script.

    See ``corefw.testing.in_process_server.in_process_server`` for its arguments.
    """
    from corefw.testing.in_process_server import in_process_server

    with ExitStack() as stack:

        def serve(*endpoints: Endpoint, **settings: Any) -> AsgiClient:
            return stack.enter_context(in_process_server(*endpoints, **settings))

        yield serve
