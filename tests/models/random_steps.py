"""Sequences computed in steps that mix and cut them by chance."""

from __future__ import annotations

import random

import torch

from corefw.testing.paged_loop import PagedLoop


def in_random_steps(loop: PagedLoop, sequences: dict[int, list[int]], seed: int) -> dict[int, torch.Tensor]:
    chance = random.Random(seed)
    parts: dict[int, list[torch.Tensor]] = {index: [] for index in sequences}
    left = dict(sequences)
    while left:
        chosen = chance.sample(sorted(left), chance.randint(1, len(left)))
        chunks = {index: left[index][: chance.choice((1, 1, 2, 7, 16, 50))] for index in chosen}
        for index, logits in loop.step(chunks).items():
            parts[index].append(logits)
            left[index] = left[index][len(chunks[index]) :]
        left = {index: ids for index, ids in left.items() if ids}
    return {index: torch.cat(rows) for index, rows in parts.items()}
