"""A hook module: serves by lines over TCP. A line in is a prompt; pieces of text come back as they are made, each as a
JSON string on a line, and an empty line at the end. The port is in the file that COREFW_SAMPLE_PORT names.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path

from corefw.errors import CorefwError
from corefw.interfaces.engine_client import EngineClient
from corefw.interfaces.hooks.http import ProtocolServer
from corefw.sdk.plugins import hookimpl


class LineServer(ProtocolServer):
    """One connection, one prompt."""

    async def start(self, client: EngineClient) -> None:
        """Listen on a free port."""
        self._client = client
        self._running: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        _tell(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more, and wait for those that run."""
        self._server.close()
        if self._running:
            await asyncio.wait(self._running)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prompt = (await reader.readline()).decode().rstrip("\n")
        params = self._client.default_params(temperature=0.0, max_tokens=int(os.environ.get("COREFW_SAMPLE_MAX", "8")))
        try:
            updates = self._client.generate(prompt, params, route="lines", tags={"door": "lines"})
            async with aclosing(updates) as stream:
                async for update in stream:
                    writer.write(json.dumps(update.text).encode() + b"\n")
                    await writer.drain()
        except CorefwError as error:
            writer.write(f"error: {error}\n".encode())
        writer.write(b"\n")
        writer.close()


def _tell(port: int) -> None:
    Path(os.environ["COREFW_SAMPLE_PORT"]).write_text(str(port), encoding="utf-8")


@hookimpl
def corefw_protocol_server() -> ProtocolServer:
    """The server."""
    return LineServer()
