"""``corefw run-batch``: a file of requests in the OpenAI batch format, answered by the server's own handlers."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, TextIO

from corefw.cli.client.connect import ENGINE_SECTIONS
from corefw.cli.client.transport import Transport, TransportError, post_json
from corefw.cli.config_file import add_config_flag
from corefw.cli.json_lines import open_input, open_output
from corefw.cli.plugin_flags import add_plugin_flag
from corefw.config.args import UserArgs, add_flags
from corefw.errors import ConfigError

__all__ = ["add_arguments", "answer_all", "run"]

# Answers that wait for an earlier one's line, so that one long answer doesn't leave the engine idle.
_WINDOW = 16
URLS = ("/v1/chat/completions", "/v1/completions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``corefw run-batch``."""
    parser.add_argument("-i", "--input-file", metavar="FILE", required=True, help="JSON lines; - is stdin")
    parser.add_argument("-o", "--output-file", metavar="FILE", required=True, help="JSON lines; - is stdout")
    parser.add_argument("--model", dest="model.model", default=argparse.SUPPRESS, help="default: the demo model")
    parser.add_argument(
        "--max-concurrency", type=int, default=512, metavar="INT", help="requests in the engine at once (default: 512)"
    )
    parser.add_argument("--log-level", default="WARNING", help="of the engine (default: WARNING)")
    add_config_flag(parser)
    add_plugin_flag(parser)
    add_flags(parser, ENGINE_SECTIONS)


def run(namespace: argparse.Namespace) -> int:
    """Answer every line; 1 when one of them failed."""
    if namespace.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency must be at least 1, got {namespace.max_concurrency}")
    args = UserArgs.from_namespace(namespace)
    with open_input(namespace.input_file) as source, open_output(namespace.output_file) as target:
        num_failed = asyncio.run(_run(args, namespace, source, target))
    if num_failed:
        print(f"corefw run-batch: {num_failed} requests failed; their lines say why", file=sys.stderr)
    return 1 if num_failed else 0


async def _run(args: UserArgs, namespace: argparse.Namespace, source: TextIO, target: TextIO) -> int:
    from corefw.cli.client.local import local_transport  # brings the engine

    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(local_transport(args, namespace.log_level))
        return await answer_all(transport, source, target, namespace.max_concurrency)


async def answer_all(transport: Transport, source: TextIO, target: TextIO, max_concurrency: int) -> int:
    """Answer every line of ``source`` in ``target``, in their order, each as soon as those before it are; how many
    failed.

    Lines are read when there is room for them, so the file may be larger than memory.
    """
    num_failed = 0
    running: asyncio.Queue[asyncio.Task[dict[str, Any]]] = asyncio.Queue()
    lines = _lines(source)
    room = asyncio.Semaphore(max_concurrency)
    async with asyncio.TaskGroup() as group:
        more = True
        while more or not running.empty():
            while more and running.qsize() < max_concurrency * _WINDOW:
                line = next(lines, None)
                more = line is not None
                if line is not None:
                    running.put_nowait(group.create_task(_answer(transport, room, *line)))
            if not running.empty():
                result = await running.get_nowait()
                num_failed += result["error"] is not None or result["response"]["status_code"] != 200
                print(json.dumps(result, ensure_ascii=False), file=target, flush=True)
    return num_failed


def _lines(source: TextIO) -> Iterator[tuple[int, str, set[str]]]:
    seen: set[str] = set()
    for number, line in enumerate(source, start=1):
        if line.strip():
            yield number, line, seen


async def _answer(
    transport: Transport, room: asyncio.Semaphore, number: int, line: str, seen: set[str]
) -> dict[str, Any]:
    result: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None}
    try:
        request = _parse(line)
        result["custom_id"] = request.get("custom_id")
        _check(request, seen)
        async with room:
            status, body = await post_json(transport, request["url"], request["body"])
        answer = json.loads(body)
    except (ConfigError, TransportError) as error:
        code = "invalid_request" if isinstance(error, ConfigError) else "engine_error"
        result["error"] = {"code": code, "message": f"line {number}: {error}"}
        return result
    result["response"] = {"status_code": status, "request_id": answer.get("id"), "body": answer}
    return result


def _parse(line: str) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(request, dict):
        raise ConfigError("a line must be an object with custom_id, method, url and body")
    return request


def _check(request: dict[str, Any], seen: set[str]) -> None:
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise ConfigError("custom_id must be a text that isn't empty")
    if custom_id in seen:
        raise ConfigError(f"custom_id {custom_id[:80]!r} is in use by an earlier line")
    seen.add(custom_id)
    if request.get("method") != "POST":
        raise ConfigError("method must be POST")
    if request.get("url") not in URLS:
        raise ConfigError(f"url must be one of {', '.join(URLS)}")
    if not isinstance(request.get("body"), dict):
        raise ConfigError("body must be an object")
    if request["body"].get("stream"):
        raise ConfigError("a batch has no streams; leave body.stream out")
