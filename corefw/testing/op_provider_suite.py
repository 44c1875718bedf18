"""Conformance suite of op providers: each kernel against the op's reference.

Shapes: T tokens, E width, O output width, H query heads, K KV heads, D head size, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from corefw.interfaces.op_provider import OpProvider, OpRequest
from corefw.models.layers.block_quantizers import quantised_4_bits, quantised_8_bits
from corefw.models.ops import definitions
from corefw.models.ops.kernels import fit_kernel
from corefw.models.ops.schema import Op, get_op, op_names
from corefw.testing.suite import NotChecked, PluginSuite, check_reason

__all__ = ["OpProviderSuite", "example_arguments", "example_layout", "example_shape"]

_TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}
_IN, _OUT, _HEAD_SIZE, _HEADS, _KV_HEADS, _POSITIONS = 24, 40, 8, 6, 2, 64
_BLOCKS_IN = 96
# Of a weight in blocks: two types, one below the other.
_LAYOUTS = {"quantized_linear": f"Q4_1:24+Q8_0:{_OUT - 24}", "quantized_embedding": f"Q8_0:{_POSITIONS}"}


def example_shape(op: str) -> dict[str, int]:
    """Sizes that an op is bound with in these examples."""
    shapes = {
        "linear": {"in_features": _IN, "out_features": _OUT},
        "quantized_linear": {"in_features": _BLOCKS_IN, "out_features": _OUT},
        "quantized_embedding": {"num_embeddings": _POSITIONS, "width": _BLOCKS_IN},
        "rotary_embedding": {"head_size": _HEAD_SIZE},
    }
    return shapes.get(op, {})


def example_layout(op: str) -> str:
    """Of the weight in blocks in these examples; empty where there is none."""
    return _LAYOUTS.get(op, "")


def example_arguments(op: str, dtype: torch.dtype, num_tokens: int, seed: int = 0) -> dict[str, Any]:
    """Random arguments of one of the core's ops.

    Raises:
        NotChecked: no example is known.
    """
    noise = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise).to(dtype)

    rows, weight, residual = random(num_tokens, _IN), random(_IN), random(num_tokens, _IN)
    norm = {"input": rows, "weight": weight, "eps": 1e-5}
    positions = torch.randint(0, _POSITIONS, (num_tokens,), generator=noise)
    examples: dict[str, dict[str, Any]] = {
        "linear": {"input": rows, "weight": random(_OUT, _IN), "bias": random(_OUT)},
        "embedding": {"ids": positions, "weight": random(_POSITIONS, _IN)},
        "quantized_linear": {
            "input": random(num_tokens, _BLOCKS_IN),
            "weight": torch.cat([_q4_1(random(24, _BLOCKS_IN)), _q8_0(random(_OUT - 24, _BLOCKS_IN))]),
            "bias": random(_OUT),
            "layout": _LAYOUTS["quantized_linear"],
        },
        "quantized_embedding": {
            "ids": positions,
            "weight": _q8_0(random(_POSITIONS, _BLOCKS_IN)),
            "layout": _LAYOUTS["quantized_embedding"],
            "width": _BLOCKS_IN,
            "dtype": dtype,
        },
        "rms_norm": norm,
        "rms_norm_plus_one": norm,
        "add_rms_norm": {**norm, "residual": residual},
        "add_rms_norm_plus_one": {**norm, "residual": residual},
        "silu_and_mul": {"input": rows},
        "gelu_tanh_and_mul": {"input": rows},
        "soft_cap": {"input": rows, "cap": 3.0},
        "most_likely": {"logits": rows, "num_ids": _IN - 3},
        "drawn": {"logits": rows * 4, "num_ids": _IN - 3, **_columns(num_tokens)},
        "rotary_embedding": {
            "query": random(num_tokens, _HEADS * _HEAD_SIZE),
            "key": random(num_tokens, _KV_HEADS * _HEAD_SIZE),
            "positions": positions,
            "cos_sin": torch.rand(_POSITIONS, _HEAD_SIZE, generator=noise) * 2 - 1,
            "head_size": _HEAD_SIZE,
        },
    }
    if op not in examples:
        raise NotChecked(f"no example arguments are known for op {op!r}")
    return {name: examples[op][name] for name in get_op(op).parameters}


def _columns(num_rows: int) -> dict[str, torch.Tensor]:
    """Parameters of rows, of which some are greedy, some have no filter and some several."""
    place = torch.arange(num_rows)
    return {
        "temperature": (place % 4).double() / 2,
        "top_k": place % 3 * 5,
        "top_p": 1 - (place % 5).double() / 8,
        "min_p": (place % 7 == 6).double() / 16,
        "numbers": (place.double() + 0.5) / num_rows,
    }


def _q4_1(weight: torch.Tensor) -> torch.Tensor:
    return quantised_4_bits(weight).rows.flatten()


def _q8_0(weight: torch.Tensor) -> torch.Tensor:
    return quantised_8_bits(weight, 32).rows.flatten()


class OpProviderSuite(PluginSuite):
    """For ``corefw.op_providers``.

    Attributes:
        device_type: where the kernels are run.
    """

    plugin: ClassVar[type[OpProvider]]
    group = "op_providers"
    torch_free = False
    device_type: ClassVar[str] = "cpu"

    def test_it_refuses_an_op_that_it_cannot_know(self) -> None:
        request = self._request("no_such_op", "float32", invariant=False)
        reason = self.plugin().supports(request)
        check_reason(reason, "supports()")
        assert reason is not None, "supports() says yes to an op that doesn't exist"

    def test_it_says_yes_or_why_not_to_every_op(self) -> None:
        answers = [self.plugin().supports(request) for request in self._requests()]
        for answer in answers:
            check_reason(answer, "supports()")

    def test_its_kernels_compute_what_the_ops_mean(self) -> None:
        for request, op, kernel in self._kernels():
            dtype = getattr(torch, request.dtype)
            given = example_arguments(request.op, dtype, 7)
            found, wanted = (
                _tensors(kernel(**self._prepared(request, given))),
                _tensors(op.reference(**_widened(given))),
            )
            for left, right in zip(found, wanted, strict=True):
                due = dtype if right.is_floating_point() else right.dtype
                assert left.dtype == due, f"{request.op}: gives {left.dtype} for {due}"
                error = float((left.double() - right).abs().max())
                assert error <= _TOLERANCE[request.dtype] * 4, f"{request.op} in {request.dtype}: off by {error:.2e}"

    def test_its_kernels_leave_their_inputs_alone(self) -> None:
        for request, _, kernel in self._kernels():
            given = self._prepared(request, example_arguments(request.op, getattr(torch, request.dtype), 7))
            kept = {name: value.clone() for name, value in given.items() if isinstance(value, torch.Tensor)}
            outputs = _tensors(kernel(**given))
            for name, value in kept.items():
                assert torch.equal(given[name], value), f"{request.op}: changes its {name}"
                assert all(_apart(out, given[name]) for out in outputs), f"{request.op}: its result shares {name}"

    def test_what_it_calls_batch_invariant_is(self) -> None:
        for request, _, kernel in self._kernels():
            if not request.batch_invariant:
                continue
            given = self._prepared(request, example_arguments(request.op, getattr(torch, request.dtype), 23))
            together = _tensors(kernel(**given))
            for row in (0, 11, 22):
                alone = _tensors(kernel(**_one_row(given, row)))
                for left, right in zip(together, alone, strict=True):
                    assert torch.equal(left[row], right[0]), (
                        f"{request.op} in {request.dtype}: row {row} depends on others"
                    )

    def test_a_prepared_weight_gives_the_same_product(self) -> None:
        provider = self.plugin()
        for request, _, kernel in self._kernels():
            if request.op != "linear":
                continue
            given = example_arguments("linear", getattr(torch, request.dtype), 5)
            plain = kernel(**given)
            prepared = kernel(**{**given, "weight": provider.prepare_weight(request, given["weight"])})
            assert torch.allclose(plain.float(), prepared.float(), atol=_TOLERANCE[request.dtype] * 4)

    def _prepared(self, request: OpRequest, given: dict[str, Any]) -> dict[str, Any]:
        """Weights in blocks come as the provider prepared them, and not otherwise."""
        if not request.layout:
            return given
        return {**given, "weight": self.plugin().prepare_weight(request, given["weight"])}

    def _kernels(self) -> Iterator[tuple[OpRequest, Op, Any]]:
        provider = self.plugin()
        supported = [request for request in self._requests() if provider.supports(request) is None]
        if not supported:
            raise NotChecked(f"it supports none of the core's ops on {self.device_type!r}")
        for request in supported:
            op = get_op(request.op)
            yield request, op, fit_kernel(op.name, op.parameters, provider.kernel(request))

    def _requests(self) -> Iterator[OpRequest]:
        assert definitions.__all__, "registers the core's ops"
        for op in op_names():
            for dtype in _TOLERANCE:
                for invariant in (False, True):
                    if invariant or dtype != "float32":  # in float32 it always is
                        yield self._request(op, dtype, invariant=invariant)

    def _request(self, op: str, dtype: str, *, invariant: bool) -> OpRequest:
        shape = example_shape(op)
        return OpRequest(
            op=op,
            device_type=self.device_type,
            dtype=dtype,
            batch_invariant=invariant,
            shape=shape,
            layout=example_layout(op),
        )


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _widened(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def _one_row(arguments: dict[str, Any], row: int) -> dict[str, Any]:
    """The same call for one of its tokens; weights and tables stay whole."""
    whole = {"weight", "bias", "cos_sin"}
    return {
        name: value[row : row + 1] if isinstance(value, torch.Tensor) and name not in whole else value
        for name, value in arguments.items()
    }


def _apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
