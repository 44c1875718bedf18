from __future__ import annotations

import numpy as np
import pytest

from corefw.runtime.sampling.bad_words import BadWords


@pytest.mark.parametrize(
    ("output", "banned"),
    [([], [7]), ([1], [2, 7]), ([1, 2], [3, 7]), ([5, 1], [2, 7]), ([2], [7]), ([1, 2, 3], [7]), ([2, 1, 2], [3, 7])],
)
def test_the_last_token_of_a_sequence_is_forbidden_when_the_others_are_the_outputs_end(
    output: list[int], banned: list[int]
) -> None:
    words = BadWords([(7,), (1, 2), (1, 2, 3)])
    assert sorted(words.banned(np.array(output, dtype=np.int32)).tolist()) == banned
