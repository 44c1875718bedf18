from __future__ import annotations

from typing import Any

import pytest

from corefw.errors import PluginError
from corefw.models.ops.kernels import fit_kernel

PARAMETERS = ("input", "weight", "eps")


def test_a_kernel_with_the_ops_own_signature_is_called_directly() -> None:
    def kernel(input: Any, weight: Any, eps: Any) -> Any:
        return input, weight, eps

    assert fit_kernel("rms_norm", PARAMETERS, kernel) is kernel


def test_the_same_names_in_another_order_are_called_by_keyword() -> None:
    def kernel(eps: Any, input: Any, weight: Any) -> Any:
        return {"eps": eps, "input": input, "weight": weight}

    fitted = fit_kernel("rms_norm", PARAMETERS, kernel)
    assert fitted(1, 2, eps=3) == {"input": 1, "weight": 2, "eps": 3}


def test_keyword_only_parameters_of_the_same_names_are_accepted() -> None:
    def kernel(*, input: Any, weight: Any, eps: Any) -> Any:
        return input, weight, eps

    assert fit_kernel("rms_norm", PARAMETERS, kernel)(1, 2, 3) == (1, 2, 3)


def test_other_names_in_the_same_number_are_called_by_position() -> None:
    def kernel(x: Any, w: Any, epsilon: Any) -> Any:
        return x, w, epsilon

    fitted = fit_kernel("rms_norm", PARAMETERS, kernel)
    assert fitted(1, eps=3, weight=2) == (1, 2, 3)


def bad_count(x: Any, w: Any) -> Any: ...
def bad_order(weight: Any, x: Any, eps: Any) -> Any: ...
def variadic(*args: Any) -> Any: ...
def too_many(input: Any, weight: Any, eps: Any, out: Any) -> Any: ...
def renamed_keyword_only(*, x: Any, w: Any, e: Any) -> Any: ...


@pytest.mark.parametrize("kernel", [bad_count, bad_order, variadic, too_many, renamed_keyword_only])
def test_anything_else_is_refused_when_it_is_bound(kernel: Any) -> None:
    with pytest.raises(PluginError, match=r"op 'rms_norm'.*the op has \(input, weight, eps\)"):
        fit_kernel("rms_norm", PARAMETERS, kernel)


@pytest.mark.parametrize("style", ["direct", "adapted"])
def test_an_unknown_argument_at_launch_is_an_error(style: str) -> None:
    def direct(input: Any, weight: Any, eps: Any) -> Any: ...
    def adapted(x: Any, w: Any, e: Any) -> Any: ...

    fitted = fit_kernel("rms_norm", PARAMETERS, direct if style == "direct" else adapted)
    with pytest.raises(TypeError):
        fitted(1, 2, 3, out=4)
    with pytest.raises(TypeError):
        fitted(1, 2)
    with pytest.raises(TypeError):
        fitted(1, 2, 3, eps=3)


class Launchable:
    """A kernel that is launched over a grid and lists its parameters."""

    arg_names = ("x", "w", "e")

    def __init__(self, grid: Any = None) -> None:
        self.grid = grid

    def __getitem__(self, grid: Any) -> Launchable:
        return Launchable(grid)

    def __call__(self, x: Any, w: Any, e: Any) -> Any:
        return self.grid, x, w, e


def test_launching_over_a_grid_keeps_working() -> None:
    fitted: Any = fit_kernel("rms_norm", PARAMETERS, Launchable())
    assert fitted[(4, 1)](1, eps=3, weight=2) == ((4, 1), 1, 2, 3)
