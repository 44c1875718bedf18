from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.config.engine_config import HASH_ALGORITHMS
from corefw.engine.kv_cache.hashing import BlockHasher, ExtraKey, ScaledHashes, cache_key, hash_algorithm, hash_block
from corefw.engine.request import Request
from corefw.errors import ConfigError
from corefw.messages.arrays import Array
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest
from corefw.messages.sampling import SamplingParams

quick = settings(deadline=None, derandomize=True, max_examples=150)


def make_request(tokens: list[int], salt: str | None = None) -> Request:
    params = SamplingParams(max_tokens=1000)
    return Request(EngineCoreRequest(request_id="r", prompt_ids=tokens, params=params, cache_salt=salt))


def hashes(tokens: list[int], salt: str | None = None, block_size: int = 4) -> list[bytes]:
    request = make_request(tokens, salt)
    BlockHasher(block_size).extend(request)
    return request.block_hashes


small_bytes = st.binary(max_size=6)
extra_keys = st.lists(
    st.tuples(st.sampled_from([b"salt", b"ext:a", b"ext:", b"tokens", b"parent"]), small_bytes), max_size=3
)
inputs = st.tuples(small_bytes, st.lists(st.integers(0, 2**40), max_size=3), extra_keys)


@quick
@given(inputs, inputs)
def test_different_inputs_never_have_the_same_hash(
    one: tuple[bytes, list[int], list[ExtraKey]], other: tuple[bytes, list[int], list[ExtraKey]]
) -> None:
    same_input = (one[0], one[1], sorted(one[2])) == (other[0], other[1], sorted(other[2]))
    assert (hash_block(*one) == hash_block(*other)) == same_input


@pytest.mark.parametrize("split", range(1, 6))
def test_a_value_can_not_move_from_one_domain_into_another(split: int) -> None:
    whole = b"ext:ab"
    moved = hash_block(b"", [1], [(whole[:split], whole[split:] + b"x")])
    assert moved != hash_block(b"", [1], [(whole, b"x")])


def test_a_salt_is_not_an_extension_key_of_the_same_value() -> None:
    assert hash_block(b"", [1], [(b"salt", b"v")]) != hash_block(b"", [1], [(b"ext:lora", b"v")])


def test_a_salt_that_looks_like_tokens_is_not_those_tokens() -> None:
    tokens = (5).to_bytes(8, "little")
    assert hash_block(b"", [1, 5]) != hash_block(b"", [1], [(b"tokens", tokens)])
    assert hash_block(b"", [1], [(b"salt", tokens)]) != hash_block(b"", [1, 5])


def test_the_order_of_extra_keys_does_not_matter() -> None:
    keys = [(b"ext:a", b"1"), (b"ext:b", b"2")]
    assert hash_block(b"", [1], keys) == hash_block(b"", [1], keys[::-1])


def test_the_same_block_behind_another_prefix_has_another_hash() -> None:
    one, other = hashes([1, 2, 3, 4, 9, 9, 9, 9]), hashes([5, 6, 7, 8, 9, 9, 9, 9])
    assert one[1] != other[1]


@quick
@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_hashes_agree_exactly_as_far_as_the_prefixes_do(one: list[int], other: list[int]) -> None:
    for index, (left, right) in enumerate(zip(hashes(one), hashes(other), strict=False)):
        end = 4 * (index + 1)
        assert (left == right) == (one[:end] == other[:end])


@quick
@given(
    st.lists(st.integers(0, 50000), max_size=40), st.lists(st.integers(0, 10), max_size=8), st.sampled_from([1, 3, 4])
)
def test_hashing_as_tokens_come_equals_hashing_at_once(tokens: list[int], cuts: list[int], block_size: int) -> None:
    hasher, request = BlockHasher(block_size), make_request([])
    start = 0
    for cut in [*cuts, len(tokens)]:
        request.token_ids.extend(tokens[start : start + cut])
        start += cut
        hasher.extend(request)
    assert request.block_hashes == hashes(tokens, block_size=block_size)
    assert len(request.block_hashes) == len(tokens) // block_size


@quick
@given(st.none() | st.text(max_size=3), st.none() | st.text(max_size=3))
def test_another_salt_separates_every_block_of_the_prefix(one: str | None, other: str | None) -> None:
    tokens = list(range(12))
    shared = set(hashes(tokens, one)) & set(hashes(tokens, other))
    assert len(shared) == (3 if one == other else 0)


def test_the_salt_goes_into_the_first_block_alone() -> None:
    salted = hashes(list(range(8)), "s")
    assert salted[1] == hash_block(salted[0], [4, 5, 6, 7])


def test_a_salt_may_hold_any_character() -> None:
    assert hashes([1, 2, 3, 4], "\ud800") != hashes([1, 2, 3, 4], "\ud801")


def test_a_source_says_what_matters_in_each_block() -> None:
    def media(_request: Request, start: int, stop: int) -> list[ExtraKey]:
        return [(b"media", b"cat")] if start <= 5 < stop else []

    request = make_request(list(range(12)))
    BlockHasher(4, sources=[media]).extend(request)
    plain = hashes(list(range(12)))
    assert request.block_hashes[0] == plain[0]
    assert request.block_hashes[1] == hash_block(plain[0], [4, 5, 6, 7], [(b"media", b"cat")])


def test_every_process_makes_the_same_hashes() -> None:
    code = "from corefw.engine.kv_cache.hashing import hash_block; print(hash_block(b'', [1, 2]).hex())"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert other.stdout.strip() == hash_block(b"", [1, 2]).hex()


def test_cache_keys_of_groups_differ_by_four_bytes() -> None:
    block_hash = hash_block(b"", [1])
    assert cache_key(block_hash, 1) == block_hash + b"\0\0\0\1"
    assert cache_key(block_hash, 0) != cache_key(block_hash, 256)


def test_a_longer_block_has_the_hash_of_its_last_part() -> None:
    parts = hashes(list(range(22)), block_size=2)
    scaled = ScaledHashes(parts, 4)
    assert len(scaled) == 2
    assert list(scaled) == [parts[3], parts[7]]
    assert scaled[-1] == parts[7]
    assert scaled[0:1] == [parts[3]]


@pytest.mark.parametrize("index", [2, -3])
def test_a_longer_block_that_is_not_full_has_no_hash(index: int) -> None:
    with pytest.raises(IndexError):
        ScaledHashes(hashes(list(range(22)), block_size=2), 4)[index]


def test_an_unknown_hash_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'md5' is unknown; use one of sha256, xxhash"):
        hash_algorithm("md5")


HASH_OF_A_BLOCK = """
from corefw.engine.kv_cache.hashing import hash_algorithm, hash_block
algorithm = hash_algorithm("xxhash")
print(algorithm.is_reproducible, hash_block(b"", [1, 2], algorithm=algorithm).hex())
"""


def hash_elsewhere(**environment: str) -> tuple[str, str]:
    """In a process of its own: whether the hash is reproducible, and the hash."""
    other = subprocess.run(
        [sys.executable, "-c", HASH_OF_A_BLOCK], capture_output=True, text=True, check=True, env=environment
    )
    reproducible, digest = other.stdout.split()
    return reproducible, digest


def test_a_hash_that_can_be_forged_has_a_seed_of_its_own_in_every_process() -> None:
    one, other = hash_elsewhere(), hash_elsewhere(PYTHONHASHSEED="random")
    assert (one[0], other[0]) == ("False", "False")
    assert one[1] != other[1]


def test_a_seed_that_is_set_makes_all_processes_agree() -> None:
    assert hash_elsewhere(PYTHONHASHSEED="7") == hash_elsewhere(PYTHONHASHSEED="7")
    assert hash_elsewhere(PYTHONHASHSEED="7") != hash_elsewhere(PYTHONHASHSEED="8")
    assert hash_elsewhere(PYTHONHASHSEED="7")[0] == "True"


def test_both_hashes_of_a_prefix_depend_on_salt_and_tokens() -> None:
    for name in HASH_ALGORITHMS:
        hasher = BlockHasher(4, hash_algorithm(name))
        chains = []
        for tokens, salt in (([1, 2, 3, 4], None), ([1, 2, 3, 5], None), ([1, 2, 3, 4], "s")):
            request = make_request(tokens, salt)
            hasher.extend(request)
            chains.append(request.block_hashes[0])
        assert len(set(chains)) == 3


def test_within_a_process_xxhash_is_the_same_for_all() -> None:
    first, second = hash_algorithm("xxhash"), hash_algorithm("xxhash")
    assert hash_block(b"", [1], algorithm=first) == hash_block(b"", [1], algorithm=second)
    assert hash_block(b"", [1], algorithm=first) != hash_block(b"", [1])


def embedded_hashes(num_tokens: int, *spans: tuple[int, list[float]], salt: str | None = None) -> list[bytes]:
    """Of a prompt of zeros with embeddings of one element at these offsets."""
    placed = tuple(
        EmbeddingSpan(offset=offset, values=Array.from_numpy(np.array(values, np.float32)[:, None]))
        for offset, values in spans
    )
    raw = EngineCoreRequest(
        request_id="r", prompt_ids=[0] * num_tokens, params=SamplingParams(), cache_salt=salt, prompt_embeds=placed
    )
    request = Request(raw)
    BlockHasher(4).extend(request)
    return request.block_hashes


def test_equal_embeddings_have_equal_hashes_up_to_where_they_differ() -> None:
    one, other = [float(i) for i in range(12)], [float(i) for i in range(12)]
    other[9] = -1.0
    assert embedded_hashes(12, (0, one)) == embedded_hashes(12, (0, list(one)))
    same = [a == b for a, b in zip(embedded_hashes(12, (0, one)), embedded_hashes(12, (0, other)), strict=True)]
    assert same == [True, True, False]


def test_what_follows_embeddings_depends_on_them_and_what_stands_before_does_not() -> None:
    first, second = embedded_hashes(12, (5, [1.0])), embedded_hashes(12, (5, [2.0]))
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, False]
    assert first[0] == hashes([0] * 4)[0]


def test_embeddings_are_told_from_tokens_positions_salts_and_signs() -> None:
    told_apart = {
        embedded_hashes(4)[0],
        embedded_hashes(4, (0, [0.0]))[0],
        embedded_hashes(4, (1, [0.0]))[0],
        embedded_hashes(4, (0, [0.0, 0.0]))[0],
        embedded_hashes(4, (0, [-0.0]))[0],
        embedded_hashes(4, (0, [0.0]), salt="s")[0],
        embedded_hashes(4, (0, [0.0]), (2, [0.0]))[0],
        embedded_hashes(4, (0, [0.0] * 4))[0],
    }
    assert len(told_apart) == 8


def test_a_span_over_several_blocks_counts_by_what_each_block_has_of_it() -> None:
    values = [float(i) for i in range(9)]
    assert embedded_hashes(12, (2, values))[1] != embedded_hashes(12, (2, [*values[:5], 0.0, *values[6:]]))[1]
    assert embedded_hashes(12, (2, values))[0] == embedded_hashes(12, (2, values[:2]))[0]
