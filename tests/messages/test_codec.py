from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.config.engine_config import EngineConfig, ResolvedPlugin
from corefw.config.runtime_plan import RuntimePlan
from corefw.errors import EngineError
from corefw.messages.arrays import Array
from corefw.messages.codec import INLINE_BYTES, Codec
from corefw.messages.control import UtilityCall
from corefw.messages.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    ModelRunnerOutput,
    PositionLogprobs,
    SchedulerStats,
    StepLogprobs,
    UtilityResult,
)
from corefw.messages.request import EmbeddingSpan, EngineCoreRequest
from corefw.messages.sampling import MAX_SEED, SamplingParams
from corefw.messages.scheduling import CachedRequests, NewRequest, SchedulerOutput
from corefw.testing.configs import fake_config

fast = settings(deadline=None, derandomize=True, max_examples=60)

ids = st.integers(0, 2**31)
texts = st.text(max_size=12)
floats = st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | floats | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
extras = st.dictionaries(texts, plain, max_size=3)
token_lists = st.lists(ids, max_size=6)
params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(-MAX_SEED - 1, MAX_SEED),
    max_tokens=st.none() | st.integers(5, 100),
    min_tokens=st.integers(0, 5),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=2).map(tuple),
    stop_token_ids=st.lists(ids, max_size=2).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    ignore_eos=st.booleans(),
)
requests = st.builds(
    EngineCoreRequest,
    request_id=texts,
    prompt_ids=token_lists,
    params=params,
    prior_output_ids=token_lists,
    eos_ids=token_lists.map(tuple),
    arrival_s=floats,
    priority=st.integers(-9, 9),
    cache_salt=st.none() | texts,
    extra=extras,
)
position_logprobs = st.builds(PositionLogprobs, token_lists, st.lists(floats, max_size=4), ids)
outputs = st.builds(
    EngineCoreOutput,
    request_id=texts,
    new_token_ids=token_lists,
    logprobs=st.none() | st.lists(position_logprobs, max_size=2),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_reason=st.none() | ids,
    num_cached_tokens=st.none() | ids,
    error=st.none() | texts,
    extra=extras,
)
stats = st.builds(SchedulerStats, num_running=ids, kv_usage=st.floats(0, 1), num_steps=ids)
messages_from_core = st.builds(
    EngineCoreOutputs,
    outputs=st.lists(outputs, max_size=3),
    stats=st.none() | stats,
    utility=st.none() | st.builds(UtilityResult, call_id=ids, value=plain, error=st.none() | texts),
)
block_ids = st.lists(token_lists, max_size=2)
new_requests = st.builds(
    NewRequest,
    request_id=texts,
    prompt_ids=token_lists,
    output_ids=token_lists,
    params=params,
    eos_ids=token_lists.map(tuple),
    block_ids=block_ids,
    num_computed_tokens=ids,
    extra=extras,
)
cached_requests = st.builds(
    CachedRequests,
    request_ids=st.lists(texts, max_size=3),
    num_computed_tokens=token_lists,
    num_output_tokens=token_lists,
    new_block_ids=st.lists(block_ids, max_size=2),
)
scheduler_outputs = st.builds(
    SchedulerOutput,
    step=ids,
    new_requests=st.lists(new_requests, max_size=2),
    cached_requests=cached_requests,
    num_scheduled_tokens=st.dictionaries(texts, ids, max_size=3),
    total_num_scheduled_tokens=ids,
    finished_request_ids=st.lists(texts, max_size=2),
    preempted_request_ids=st.lists(texts, max_size=2),
    block_ids_to_zero=block_ids,
)
# Small ones stay inside the message, large ones travel beside it.
arrays = st.builds(
    lambda shape, dtype: Array.from_numpy(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)),
    st.tuples(st.integers(0, 3), st.sampled_from([1, INLINE_BYTES])),
    st.sampled_from(["int32", "float32"]),
)
step_logprobs = st.builds(StepLogprobs, token_lists, arrays, arrays, arrays)
runner_outputs = st.builds(
    ModelRunnerOutput,
    request_ids=st.lists(texts, max_size=3),
    sampled_token_ids=st.lists(token_lists, max_size=3),
    logprobs=st.none() | step_logprobs,
    extra=st.dictionaries(texts, extras, max_size=2),
    failed=st.dictionaries(texts, texts, max_size=2),
)


resolved_plugins = st.builds(ResolvedPlugin, group=texts, name=texts, value=texts, distribution=texts, version=texts)


def through(message_type: type, message: Any) -> Any:
    codec: Codec[Any] = Codec(message_type)
    return codec.decode([memoryview(bytes(frame)) for frame in codec.encode(message)])


@fast
@given(requests)
def test_a_request_arrives_as_it_was_sent(message: EngineCoreRequest) -> None:
    assert through(EngineCoreRequest, message) == message


@fast
@given(messages_from_core)
def test_outputs_arrive_as_they_were_sent(message: EngineCoreOutputs) -> None:
    assert through(EngineCoreOutputs, message) == message


@fast
@given(scheduler_outputs)
def test_a_step_arrives_as_it_was_scheduled(message: SchedulerOutput) -> None:
    assert through(SchedulerOutput, message) == message


@fast
@given(runner_outputs)
def test_a_steps_result_arrives_with_its_arrays(message: ModelRunnerOutput) -> None:
    assert through(ModelRunnerOutput, message) == message


@fast
@given(st.builds(UtilityCall, call_id=ids, method=texts, args=st.lists(plain, max_size=3)))
def test_a_call_arrives_with_its_arguments(message: UtilityCall) -> None:
    assert through(UtilityCall, message) == message


@fast
@given(
    hf_config=extras,
    served_model_name=st.lists(st.text(st.characters(exclude_categories=("C", "Z")), min_size=1), unique=True).map(
        tuple
    ),
    block_size=st.none() | st.integers(1, 64),
    enable_prefix_caching=st.booleans(),
    generation_config=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1),
    stated_by_model=extras,
    eos_ids=token_lists.map(tuple),
    resolved=st.lists(resolved_plugins, max_size=2).map(tuple),
)
def test_a_configuration_arrives_exactly(stated_by_model: dict[str, Any], **overrides: Any) -> None:
    config = fake_config(**overrides)
    info = dataclasses.replace(config.model_info, generation_config=stated_by_model)
    config = dataclasses.replace(config, model_info=info, decisions=(("dtype", "float32", "set by --dtype"),))
    received = through(EngineConfig, config)
    assert received == config
    assert type(received.model_info.files.weights) is tuple


@fast
@given(
    st.builds(
        RuntimePlan,
        num_blocks=ids,
        block_size=ids,
        max_model_len=ids,
        kv_cache_bytes=st.integers(0, 2**50),
        attention_backend=texts,
        layer_groups=st.lists(st.lists(texts, max_size=3).map(tuple), max_size=3).map(tuple),
        decisions=st.lists(st.tuples(texts, texts, texts), max_size=3).map(tuple),
    )
)
def test_a_plan_arrives_exactly(plan: RuntimePlan) -> None:
    assert through(RuntimePlan, plan) == plan


def result_with(array: Array) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        request_ids=["a"], sampled_token_ids=[[1]], logprobs=StepLogprobs([0], array, array, array)
    )


def test_a_large_array_is_sent_and_received_without_a_copy() -> None:
    array = Array("uint8", (INLINE_BYTES,), bytes(INLINE_BYTES))
    codec = Codec(ModelRunnerOutput)
    frames = codec.encode(result_with(array))
    assert [frame is array.data for frame in frames] == [False, True, True, True]
    received = codec.decode(frames)
    assert received.logprobs is not None
    assert received.logprobs.token_ids.data is frames[1]


def test_a_small_array_stays_inside_the_message() -> None:
    array = Array("uint8", (INLINE_BYTES - 1,), bytes(INLINE_BYTES - 1))
    assert len(Codec(ModelRunnerOutput).encode(result_with(array))) == 1


def test_a_message_whose_frames_are_missing_is_refused() -> None:
    codec = Codec(ModelRunnerOutput)
    frames = codec.encode(result_with(Array("uint8", (INLINE_BYTES,), bytes(INLINE_BYTES))))
    with pytest.raises(EngineError, match="undecodable message"):
        codec.decode(frames[:2])


def test_a_field_of_the_wrong_type_is_refused_with_its_path() -> None:
    payload = msgspec.msgpack.encode({"request_id": "a", "prompt_ids": [1, 1.5], "params": {}})
    with pytest.raises(EngineError, match=r"\$\.prompt_ids\[1\]"):
        Codec(EngineCoreRequest).decode([payload])


def test_what_isnt_plain_data_cant_be_sent() -> None:
    request = EngineCoreRequest(request_id="a", prompt_ids=[1], params=SamplingParams(), extra={"x": object()})
    with pytest.raises(TypeError, match="object can't cross a process border"):
        Codec(EngineCoreRequest).encode(request)


def test_embeddings_travel_beside_the_request_without_a_copy() -> None:
    rows = np.arange(INLINE_BYTES, dtype=np.float32).reshape(-1, 8)
    spans = (
        EmbeddingSpan(offset=1, values=Array.from_numpy(rows[:1])),
        EmbeddingSpan(offset=5, values=Array.from_numpy(rows)),
    )
    request = EngineCoreRequest(request_id="r", prompt_ids=[0] * 1000, params=SamplingParams(), prompt_embeds=spans)
    codec = Codec(EngineCoreRequest)
    frames = codec.encode(request)
    assert [frame is spans[1].values.data for frame in frames] == [False, True]
    received = codec.decode(frames)
    assert received == request
    assert received.prompt_embeds[1].values.data is frames[1]
    assert [(span.offset, span.stop) for span in received.prompt_embeds] == [(1, 2), (5, 5 + len(rows))]
