"""Order and concurrency of a batch, against a server that answers when the test says."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator

from corefw.cli.client.transport import Answer
from corefw.cli.run_batch import answer_all


class SlowestFirst:
    """Answers later requests sooner."""

    def __init__(self) -> None:
        self.num_running = self.most_running = self.num_sent = 0

    async def send(self, method: str, path: str, body: bytes = b"") -> Answer:
        self.num_sent += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.02 / self.num_sent)
        self.num_running -= 1
        return Answer(200, self._body(body))

    async def _body(self, body: bytes) -> AsyncGenerator[bytes, None]:
        yield json.dumps({"id": json.loads(body)["prompt"]}).encode()

    async def close(self) -> None:
        pass


async def test_answers_keep_the_order_and_the_limit() -> None:
    lines = [
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": str(i)}})
        for i in range(60)
    ]
    transport, target = SlowestFirst(), io.StringIO()
    num_failed = await answer_all(transport, io.StringIO("\n".join(lines)), target, 7)
    results = [json.loads(line) for line in target.getvalue().splitlines()]
    assert num_failed == 0
    assert [result["custom_id"] for result in results] == [f"r{i}" for i in range(60)]
    assert [result["response"]["request_id"] for result in results] == [str(i) for i in range(60)]
    assert transport.most_running == 7
