"""The implementation passes the suite of model implementations."""

from __future__ import annotations

import pytest

from corefw.testing.model_suite import ModelImplementationSuite
from corefw_models_transformers.implementation import TransformersModels


@pytest.mark.slow
class TestTransformers(ModelImplementationSuite):
    plugin = TransformersModels


def test_the_suite_has_its_cases() -> None:
    assert TestTransformers.group == "model_implementations"
