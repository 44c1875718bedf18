"""Sampling metadata for tests: one dict a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from corefw.runtime.sampling.metadata import NO_LOGPROBS, SamplingMetadata

_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": 0,
    "position": 0,
    "num_logprobs": NO_LOGPROBS,
}


def metadata(rows: list[dict[str, Any]]) -> SamplingMetadata:
    """Keys as in ``_DEFAULTS``, and ``banned``: ids that may not be sampled."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([row.get(name, _DEFAULTS[name]) for row in rows], dtype=dtype)

    banned = [(index, token_id) for index, row in enumerate(rows) for token_id in row.get("banned", ())]
    return SamplingMetadata(
        temperature=column("temperature", np.float64),
        top_p=column("top_p", np.float64),
        top_k=column("top_k", np.int64),
        min_p=column("min_p", np.float64),
        seeds=column("seed", np.int64),
        positions=column("position", np.int64),
        num_logprobs=column("num_logprobs", np.int64),
        banned_rows=np.array([row for row, _ in banned], dtype=np.int64),
        banned_ids=np.array([token_id for _, token_id in banned], dtype=np.int64),
    )
