"""The policy checks themselves find what they look for."""

from __future__ import annotations

import ast

import pytest

from tests.policy.test_source import _is_device_api, _reads_environment
from tests.policy.test_tests import expects


def _found(source: str, check: object) -> bool:
    assert callable(check)
    return any(check(node) for node in ast.walk(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import torch.cuda",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "x.cuda()",
        "if device.type == 'cuda': pass",
        "if 'rocm' != kind: pass",
    ],
)
def test_a_device_api_is_found(source: str) -> None:
    assert _found(source, _is_device_api)


@pytest.mark.parametrize("source", ["import torch\ntorch.empty(1)", "order = ('cuda', 'cpu')", "plugins.cuda_name()"])
def test_what_is_no_device_api_is_left_alone(source: str) -> None:
    assert not _found(source, _is_device_api)


@pytest.mark.parametrize("source", ["import os\nos.environ['A']", "os.getenv('A')", "from os import environ"])
def test_a_read_of_the_environment_is_found(source: str) -> None:
    assert _found(source, _reads_environment)


@pytest.mark.parametrize("source", ["assert x", "with pytest.raises(E): f()", "with pytest.warns(W): f()"])
def test_an_expectation_is_found(source: str) -> None:
    assert expects(ast.parse(source))
