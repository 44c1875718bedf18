"""The server's app in this process, over an engine that plays a script, and a client of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corefw.builtins.endpoints.chat import ChatEndpoint
from corefw.builtins.endpoints.completions import CompletionsEndpoint
from corefw.builtins.endpoints.docs import DocsEndpoint
from corefw.builtins.endpoints.metrics import MetricsEndpoint
from corefw.builtins.endpoints.models import ModelsEndpoint
from corefw.builtins.endpoints.openapi import OpenApiEndpoint
from corefw.builtins.endpoints.system import SystemEndpoint
from corefw.config.engine_config import ServerConfig
from corefw.frontend.text_engine import TextEngine
from corefw.interfaces.endpoint import Endpoint
from corefw.server.app import create_app
from corefw.server.state import ServerState
from corefw.testing.asgi_client import AsgiClient
from corefw.testing.byte_text import BYTE_EOS_ID, BYTE_VOCAB_SIZE, ByteRenderer
from corefw.testing.configs import fake_config
from corefw.testing.scripted_engine import ScriptedEngine

__all__ = ["SERVER_KEY", "builtin_endpoints", "in_process_server", "scripted_text"]

SERVER_KEY = "sesame"


def builtin_endpoints() -> list[Endpoint]:
    """The core's own routes."""
    return [
        CompletionsEndpoint(),
        ChatEndpoint(),
        ModelsEndpoint(),
        SystemEndpoint(),
        MetricsEndpoint(),
        OpenApiEndpoint(),
        DocsEndpoint(),
    ]


def scripted_text(text: str = "Hello, world!") -> ScriptedEngine:
    """An engine that answers every request with ``text``; token ids are bytes."""
    config = fake_config(vocab_size=BYTE_VOCAB_SIZE, eos_ids=(BYTE_EOS_ID,), max_position=2048)
    return ScriptedEngine([*text.encode(), BYTE_EOS_ID], config=config)


@contextmanager
def in_process_server(
    *endpoints: Endpoint,
    engine: ScriptedEngine | None = None,
    plugins: Any = None,
    with_key: bool = True,
    **settings: Any,
) -> Iterator[AsgiClient]:
    """A client of the whole app: the core's routes and ``endpoints``, behind the key ``SERVER_KEY``.

    Args:
        engine: None takes ``scripted_text()``.
        plugins: a manager whose hooks count.
        with_key: whether the client sends the key.
        settings: fields of ``ServerConfig``.
    """
    served: Any = engine or scripted_text()
    renderer: Any = ByteRenderer()
    state = ServerState.build(
        engine=served,
        text=TextEngine(served, renderer),
        renderer=renderer,
        plugins=plugins,
        config=served.config,
        server_config=ServerConfig(**{"api_key": (SERVER_KEY,), **settings}),
        started_s=time.time(),
    )
    given = {type(endpoint) for endpoint in endpoints}
    app = create_app(state, [*(own for own in builtin_endpoints() if type(own) not in given), *endpoints])
    headers = {"authorization": f"Bearer {SERVER_KEY}"} if with_key else {}
    with AsgiClient(app, headers).open() as client:
        yield client
