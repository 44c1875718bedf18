"""What torchrun runs on every rank: engines alike, one that was set differently, and one that is driven differently."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from corefw.errors import ConfigError, EngineDeadError
from corefw.messages.sampling import SamplingParams
from corefw.testing.offline_runs import PROMPTS, open_tiny, tokens_of, used_blocks

_RANK = int(os.environ["RANK"])
_SIZES = {f"{sys.argv[1]}_parallel_size": 2, "distributed_executor_backend": "external_launcher"}
_SEEDLESS = SamplingParams(temperature=3.0, max_tokens=6, ignore_eos=True, logprobs=2, n=2)


def main() -> None:
    model, out = sys.argv[2:]
    told: dict[str, object] = {}
    with open_tiny(model, **_SIZES) as llm:
        told["greedy"] = tokens_of(llm)
        results = llm.generate(PROMPTS, _SEEDLESS)
        told["seedless"] = [[list(each.token_ids) for each in result.outputs] for result in results]
        told["used"] = used_blocks(llm)
        told["batches"] = llm.engine.core._executor.collective_rpc("batch_request_ids")
    try:
        open_tiny(model, **_SIZES, max_num_seqs=8 + _RANK).__enter__()
    except ConfigError as error:
        told["set differently"] = str(error)
    with open_tiny(model, **_SIZES, num_gpu_blocks_override=12) as llm:
        told["preempted"] = tokens_of(llm, PROMPTS * 2)
        try:
            tokens_of(llm, PROMPTS[_RANK:])
        except EngineDeadError as error:
            told["driven differently"] = str(error)
    Path(f"{out}.{_RANK}").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
