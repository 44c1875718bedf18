"""Sampling metadata for tests: one dict a row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from corefw.runtime.sampling.metadata import NO_LOGPROBS, BoundProcessor, Coordinates, Penalties, SamplingMetadata

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
    """Keys as in ``_DEFAULTS``, and: ``banned``, ``allowed`` (ids), ``bias`` (by id), ``prompt`` and ``output`` (ids)
    with ``repetition``, ``presence``, ``frequency``, ``early`` and ``late`` (processors before and after temperature).
    """

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([row.get(name, _DEFAULTS[name]) for row in rows], dtype=dtype)

    bias = [
        (index, token_id, value) for index, row in enumerate(rows) for token_id, value in row.get("bias", {}).items()
    ]
    return SamplingMetadata(
        temperature=column("temperature", np.float64),
        top_p=column("top_p", np.float64),
        top_k=column("top_k", np.int64),
        min_p=column("min_p", np.float64),
        seeds=column("seed", np.int64),
        positions=column("position", np.int64),
        num_logprobs=column("num_logprobs", np.int64),
        allowed=tuple((i, np.array(row["allowed"])) for i, row in enumerate(rows) if "allowed" in row),
        banned=_coordinates(
            [(index, token_id) for index, row in enumerate(rows) for token_id in row.get("banned", ())]
        ),
        bias=_coordinates([(index, token_id) for index, token_id, _ in bias]),
        bias_values=np.array([value for _, _, value in bias], dtype=np.float32),
        penalties=_penalties(rows),
        processors=tuple(
            BoundProcessor(key, index, key == "early", row[key])
            for index, row in enumerate(rows)
            for key in ("early", "late")
            if key in row
        ),
    )


def _coordinates(pairs: list[tuple[int, int]]) -> Coordinates:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Coordinates(columns[:, 0], columns[:, 1])


def _penalties(rows: list[dict[str, Any]]) -> Penalties | None:
    seen = []
    for index, row in enumerate(rows):
        counts = Counter(row.get("output", ()))
        for token_id in dict.fromkeys((*row.get("prompt", ()), *counts)):
            values = counts[token_id], row.get("repetition", 1.0), row.get("presence", 0.0), row.get("frequency", 0.0)
            seen.append((index, token_id, *values))
    if not seen:
        return None
    columns = np.array([values[2:] for values in seen], dtype=np.float32)
    return Penalties(_coordinates([(row, token_id) for row, token_id, *_ in seen]), *np.ascontiguousarray(columns.T))
