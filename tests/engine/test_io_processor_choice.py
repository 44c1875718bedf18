"""Which IO processor serves, and why none of the others does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar

import pytest

from corefw.engine.io_processor_choice import choose_io_processor
from corefw.errors import ConfigError, PluginError
from corefw.interfaces.io_processor import IOContext, IOOutput, IOProcessor, IOPrompt
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.manager import PluginManager
from corefw.testing.configs import fake_config
from corefw.testing.registration import registered


class Questions(IOProcessor):
    def pre_process(self, context: IOContext) -> IOPrompt:
        return IOPrompt(text="Why?")

    def post_process(self, context: IOContext, outputs: object) -> list[IOOutput]:
        return []


class Vectors(Questions):
    tasks: ClassVar[frozenset[str]] = frozenset({"embed"})


@pytest.fixture
def plugins() -> Iterator[PluginManager]:
    with ExitStack() as stack:
        for name, value in (("questions", Questions), ("vectors", Vectors)):
            stack.enter_context(registered("io_processor_plugins", name, value))
        yield PluginManager.discover("+questions,+vectors")


def rejected(selection: Selection) -> dict[str, str]:
    return {each.name: each.reason for each in selection.rejected}


def test_nobody_names_one(plugins: PluginManager) -> None:
    found, selection = choose_io_processor(fake_config(), plugins)
    assert (found, selection.what, selection.chosen) == (None, "IO processor", "none")
    assert "--io-processor-plugin" in selection.reason
    assert Rejected("questions", "not asked: nobody names it") in selection.rejected
    assert {"questions", "vectors"} <= rejected(selection).keys()


@pytest.mark.parametrize(
    ("flag", "of_model", "setting"),
    [
        ("questions", None, "--io-processor-plugin"),
        ("questions", "vectors", "--io-processor-plugin"),
        (None, "questions", "io_processor_plugin in the model's configuration"),
    ],
)
def test_the_operator_names_it_else_the_model(
    plugins: PluginManager, flag: str | None, of_model: str | None, setting: str
) -> None:
    config = fake_config(io_processor_plugin=flag, hf_config={"io_processor_plugin": of_model})
    found, selection = choose_io_processor(config, plugins)
    assert (found, selection.chosen, selection.reason) == (Questions, "questions", f"the value of {setting}")
    assert rejected(selection)["vectors"] == f"not asked: {setting} is questions"


def test_the_operator_wants_none(plugins: PluginManager) -> None:
    config = fake_config(io_processor_plugin="none", hf_config={"io_processor_plugin": "questions"})
    found, selection = choose_io_processor(config, plugins)
    assert (found, selection.chosen) == (None, "none")
    assert rejected(selection)["questions"] == "not asked: --io-processor-plugin is none"


def test_what_cannot_serve_is_told(plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match=r"'vectors' .* is for embed, but this model does generate"):
        choose_io_processor(fake_config(io_processor_plugin="vectors"), plugins)
    with pytest.raises(PluginError, match=r"'question', .* isn't installed; installed: .*questions, vectors"):
        choose_io_processor(fake_config(io_processor_plugin="question"), plugins)
    with pytest.raises(ConfigError, match="must be a text"):
        choose_io_processor(fake_config(hf_config={"io_processor_plugin": 3}), plugins)
