from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from corefw.errors import EngineError, RequestError
from corefw.frontend.extensions import MAX_EXTENSION_VALUES, Extensions
from corefw.interfaces.hooks.lifecycle import RequestExtension
from corefw.plugin_system.contributions import Contribution


class Picky(RequestExtension):
    def check(self, data: Mapping[str, object]) -> None:
        if "wrong" in data:
            raise RequestError("that is wrong", param="wrong")
        if "bug" in data:
            raise KeyError("bug")


@pytest.fixture
def extensions() -> Extensions:
    return Extensions([Contribution("mine", "my-dist", "corefw_request_extension", Picky())])


def test_right_data_travel_by_plugin_and_none_are_none(extensions: Extensions) -> None:
    assert extensions.checked({"mine": {"x": [1, "a"]}}) == {"mine": {"x": [1, "a"]}}
    assert extensions.checked(None) == extensions.checked({}) == {}


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"mime": {}}, "extensions.mime", "did you mean mine"),
        ({"mine": 1}, "extensions.mine", "must be an object"),
        ({"mine": None}, "extensions.mine", "must be an object"),
        ({"mine": {"wrong": 1}}, "extensions.mine.wrong", "that is wrong"),
        ({"mine": {"x": object()}}, "extensions.mine", "plain data"),
        ({"mine": {"x": [0] * MAX_EXTENSION_VALUES}}, "extensions.mine", "larger than"),
        ({"mine": {"x": [[[[[[[[1]]]]]]]]}}, "extensions.mine", "deeper than"),
    ],
)
def test_wrong_data_are_refused_with_their_path(
    extensions: Extensions, given: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        extensions.checked(given)
    assert caught.value.param == param


def test_data_that_a_plugin_failed_to_check_do_not_run(extensions: Extensions) -> None:
    with pytest.raises(EngineError, match="my-dist/mine failed to check"):
        extensions.checked({"mine": {"bug": 1}})
