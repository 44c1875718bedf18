"""Sections of plugins: what can be one, and how values become typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from corefw.config.args import UserArgs
from corefw.config.plugin_settings import (
    PluginSetting,
    fill_section,
    restore_section,
    section_fields,
    setting_key,
    settings_by_plugin,
)
from corefw.errors import ConfigError, PluginError


@dataclass
class Section:
    number: int = 1
    share: float = 0.5
    on: bool = False
    name: str = "n"
    maybe: int | None = None
    names: list[str] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number == 13:
            raise ValueError("13 is bad luck")


@dataclass
class Needy:
    number: int


class Opaque(msgspec.Struct):
    value: Any = object()


def texts(**values: str) -> dict[str, PluginSetting]:
    return {name: PluginSetting(value, f"--mine.{name}", is_text=True) for name, value in values.items()}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("number", "7", 7),
        ("share", "1", 1.0),
        ("on", "true", True),
        ("name", "7", "7"),
        ("name", "[x", "[x"),
        ("maybe", "3", 3),
        ("maybe", "null", None),
        ("names", '["a", "b"]', ["a", "b"]),
        ("table", '{"a": 1}', {"a": 1}),
    ],
)
def test_a_text_of_the_command_line_becomes_what_its_field_is(name: str, text: str, value: object) -> None:
    assert getattr(fill_section(Section, "mine", texts(**{name: text})), name) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("number", "seven", "--mine.number: Expected `int`, got `str`"),
        ("table", '{"a": "b"}', "--mine.table: Expected `int`, got `str`"),
        ("names", "[", "--mine.names: "),
        ("number", "13", "--mine.number: plugin mine refuses its settings: 13 is bad luck"),
        ("nmber", "1", "--mine.nmber: plugin mine has no setting 'nmber'; did you mean number?"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_flag(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fill_section(Section, "mine", texts(**{name: text}))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"), [(int, "neither a dataclass nor"), (Needy, "a default for each field"), (Opaque, "plain data")]
)
def test_what_cannot_be_a_section_is_told_to_its_author(kind: type, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        section_fields(kind)


def test_what_a_section_raises_is_told_with_where_it_was_written() -> None:
    @dataclass
    class Fussy:
        number: int = 3

        def __post_init__(self) -> None:
            if self.number > 3:
                raise RuntimeError("too many")

    with pytest.raises(ConfigError, match=r"--mine\.number: plugin mine refuses its settings: too many"):
        fill_section(Fussy, "mine", {"number": PluginSetting("4", "--mine.number", is_text=True)})


def test_a_value_nested_without_end_is_refused() -> None:
    @dataclass
    class Open:
        data: dict[str, Any] = field(default_factory=dict)

    with pytest.raises(ConfigError, match=r"--mine\.data is nested too deeply"):
        fill_section(Open, "mine", {"data": PluginSetting('{"a":' + "[" * 100_000, "--mine.data", is_text=True)})


def test_a_section_is_the_same_in_another_process() -> None:
    section = fill_section(Section, "mine", texts(number="4", names='["a"]'))
    assert restore_section(Section, msgspec.to_builtins(section)) == section


def test_another_type_under_that_name_is_refused() -> None:
    with pytest.raises(PluginError, match="isn't the section that the parent process filled"):
        restore_section(Section, {"number": "text"})


def test_a_plugins_name_may_have_dots_and_a_field_dashes() -> None:
    setting = PluginSetting(1, "here")
    assert settings_by_plugin({setting_key("a.b", "c-d"): setting, "model.seed": 1}) == {"a.b": {"c_d": setting}}


def test_keywords_survive_the_way_through_flags() -> None:
    args = UserArgs.from_keywords(seed=3, plugin_config={"mine": {"number": 4}})
    assert UserArgs.from_keywords(**args.keywords()) == args
    assert args.flags() == ["--mine.number", "--seed"]
