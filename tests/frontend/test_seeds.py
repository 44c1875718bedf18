from __future__ import annotations

from corefw.frontend.seeds import new_seed, output_seed
from corefw.messages.sampling import MAX_SEED, SamplingParams


def test_the_first_output_has_the_requests_own_seed() -> None:
    assert output_seed(-5, 0) == -5


def test_outputs_have_different_seeds_that_are_always_the_same() -> None:
    seeds = [output_seed(42, i) for i in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [output_seed(42, i) for i in range(100)]
    assert seeds[1] == 1984979838283651376  # pinned: a change would change everybody's seeded outputs


def test_neighbouring_seeds_share_no_outputs() -> None:
    assert len({output_seed(seed, i) for seed in range(50) for i in range(10)}) == 500


def test_every_seed_is_one_that_parameters_accept() -> None:
    for seed in (new_seed(), output_seed(MAX_SEED, 7), output_seed(-MAX_SEED - 1, 3)):
        assert SamplingParams(seed=seed).seed == seed
    assert new_seed() != new_seed()
