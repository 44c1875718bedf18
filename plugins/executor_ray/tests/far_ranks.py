"""``python far_ranks.py MODEL``: two ranks on the cluster of RAY_ADDRESS; prints where they are and what they say."""

from __future__ import annotations

import json
import sys

from corefw.testing.offline_runs import open_tiny, tokens_of
from corefw_executor_ray.executor import RayExecutor


def main(model: str) -> None:
    with open_tiny(model, plugins="ray", distributed_executor_backend="ray", tensor_parallel_size=2) as llm:
        (executor,) = (value for value in vars(llm.engine.core).values() if isinstance(value, RayExecutor))
        print(json.dumps({"hosts": [home.host for home in executor.homes], "tokens": tokens_of(llm)}))


if __name__ == "__main__":
    main(sys.argv[1])
