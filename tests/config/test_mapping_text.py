"""Settings that are a mapping, in each place where they may be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corefw.config.args import UserArgs, check_setting
from corefw.config.file import read_settings
from corefw.config.mapping_text import read_mapping
from corefw.errors import ConfigError

SETTINGS = {"linear": {"weight": "int8_per_channel_static"}, "ignore": ["lm_head"]}
YAML = "linear:\n  weight: int8_per_channel_static\nignore: [lm_head]\n"


def test_json_and_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML, encoding="utf-8")
    (tmp_path / "a.json").write_text('{"linear": {"weight": "int8_per_channel_static"}, "ignore": ["lm_head"]}')
    for text in (str(tmp_path / "a.yaml"), str(tmp_path / "a.json"), (tmp_path / "a.json").read_text()):
        assert read_mapping(text, "--x") == SETTINGS


def test_python_and_a_file_of_settings_take_the_mapping_itself(tmp_path: Path) -> None:
    args = UserArgs.from_keywords(quantization_config=SETTINGS)
    assert read_mapping(str(args.values["model.quantization_config"]), "--x") == SETTINGS
    file = tmp_path / "settings.yaml"
    file.write_text("quantization-config:\n  " + YAML.replace("\n", "\n  "), encoding="utf-8")
    (setting,) = read_settings(file)
    text = check_setting("model.quantization_config", setting.value, "--x")
    assert read_mapping(text, "--x") == SETTINGS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--x isn't JSON"),
        ("[1]", "--x must be a mapping, got list"),
        ("/no/such/file.yaml", "--x '/no/such/file.yaml' is neither JSON nor a file that can be read"),
    ],
)
def test_what_is_no_mapping_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_mapping(text, "--x")


@pytest.mark.parametrize("value", [{"a": {1, 2}}, {"a": b"x"}])
def test_what_json_has_not_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="quantization_config can't be written as JSON"):
        UserArgs.from_keywords(quantization_config=value)
