"""A scripted server as a process of its own, for tests of signals; its one argument is a JSON object."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from corefw.config.engine_config import ServerConfig
from corefw.errors import CorefwError
from corefw.server.app import create_app
from corefw.server.listener import listen_on
from corefw.server.run import serve
from tests.server.serving import builtin_endpoints, make_state, scripted


async def main(settings: dict[str, float]) -> None:
    engine = scripted("x" * 10_000, delay_s=settings["delay_s"], max_model_len=20_000)
    config = ServerConfig(port=0, shutdown_timeout=settings["shutdown_timeout"])
    app = create_app(make_state(engine, config), builtin_endpoints())
    if "dies_after_s" in settings:
        asyncio.get_running_loop().call_later(settings["dies_after_s"], engine.die)
    await serve(app, listen_on(config), config, engine.shutdown)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    try:
        asyncio.run(main(json.loads(sys.argv[1])))
    except CorefwError as error:
        sys.exit(f"error: {error}")
