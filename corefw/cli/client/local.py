"""A model of one's own behind the server's handlers, for commands that need no listening server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from corefw import env
from corefw.cli.client.asgi import AsgiTransport
from corefw.config.args import UserArgs
from corefw.config.engine_config import ServerConfig
from corefw.engine.async_engine import AsyncEngine
from corefw.engine.engine_processes import EngineProcesses, core_launcher, wanted_engines
from corefw.engine.restart_policy import RestartPolicy
from corefw.frontend.prepare import prepare
from corefw.frontend.text_engine import TextEngine
from corefw.observability.logging import configure_logging
from corefw.server.app import create_app
from corefw.server.state import ServerState

__all__ = ["local_transport"]

# What comes from one's own file needs no protection from large bodies.
_MAX_BODY_BYTES = 2**30
# The command itself bounds what it asks for at once, in requests of many choices.
_MAX_CONCURRENT_REQUESTS = 2**20
# Nobody waits for a signal to be answered here, so a core on a busy machine may take its time to end.
_GRACE_S = 15.0


@asynccontextmanager
async def local_transport(args: UserArgs, log_level: str) -> AsyncIterator[AsgiTransport]:
    """Start a core and an app over it, with every allowed endpoint; both end with the block.

    Raises:
        ConfigError, PluginError, EngineStartError: the engine can't start.
    """
    configure_logging(log_level, "front-end")
    started_s = time.time()
    engines = EngineProcesses.spawn(wanted_engines(args))
    try:
        prepared = prepare(args)
        engines.configure(prepared.config, core_launcher(prepared.config, prepared.plugins), log_level=log_level)
        engine = AsyncEngine(await engines.connect(policy=RestartPolicy()), grace_s=_GRACE_S)
        try:
            state = ServerState.build(
                engine=engine,
                text=TextEngine(engine, prepared.renderer, hooks=prepared.renderer.hooks),
                renderer=prepared.renderer,
                plugins=prepared.plugins,
                config=prepared.config,
                server_config=ServerConfig(
                    max_body_bytes=_MAX_BODY_BYTES, max_concurrent_requests=_MAX_CONCURRENT_REQUESTS
                ),
                started_s=started_s,
            )
            app = create_app(state, [plugin.value() for plugin in prepared.plugins.load_all("endpoint_plugins")])
            async with app.router.lifespan_context(app):
                yield AsgiTransport(app, api_key=env.api_key())
        finally:
            await engine.shutdown()
    finally:
        engines.close()
