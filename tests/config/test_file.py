"""A file of settings is flat YAML; what isn't is refused with its place."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest

from corefw.config.file import FileSetting, read_settings
from corefw.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_keys_are_read_with_their_lines(file: Path) -> None:
    file.write_text("# a comment\nmodel: x\n\nmax_model_len: 512\napi-key: [a, 'b']\nwatermark: 0.5\nkv-events: true\n")
    found = read_settings(file)
    assert [(setting.key, setting.value) for setting in found] == [
        ("model", "x"),
        ("max-model-len", 512),
        ("api-key", ("a", "b")),
        ("watermark", 0.5),
        ("kv-events", True),
    ]
    assert found[1].place == f"{file}, line 4"


def test_plugins_have_sections_and_beside_them_the_allowlist(file: Path) -> None:
    file.write_text("port: 1\nplugins:\n  allow: +mine\n  mine:\n    a-b: 2\n    table: {x: [1.5, {y: true}]}\n")
    assert read_settings(file) == (
        FileSetting(f"{file}, line 1", "port", 1),
        FileSetting(f"{file}, line 3", "plugins", "+mine"),
        FileSetting(f"{file}, line 5", "a-b", 2, "mine"),
        FileSetting(f"{file}, line 6", "table", {"x": [1.5, {"y": True}]}, "mine"),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_says_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert read_settings(file) == ()


_LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 1\nport: 2\n", "line 2: port is there already, in line 1"),
        ("max-model-len: 1\nmax_model_len: 2\n", "max-model-len is there already"),
        ("- port\n", "must be a mapping"),
        ("just text\n", "must be a mapping"),
        ("port: [1\n", "isn't YAML: line 2"),
        ("a: 1\n---\nb: 2\n", "isn't YAML"),
        ("port: \x00\n", "isn't YAML"),
        ("server:\n  port: 1\n", "line 1: server must be a text, a number"),
        ("plugins:\n  mine: 1\n", "line 2: plugins.mine must be a mapping of the plugin's settings"),
        ("plugins:\n  mine: {a: 1, a: 2}\n", "line 2: plugins.mine.a is there already"),
        ("plugins:\n  mine: {a: {b: null}}\n", "plugins.mine.a.b has no value"),
        ("plugins:\n  ? [a]\n  : 1\n", "plugins has a key that isn't a name"),
        ("plugins:\n  mine:\n" + textwrap.indent(_LAUGHS, "    "), "there are more than 10000 values"),
        ("plugins:\n  mine: {a: &a [*a]}\n", "nested too deeply"),
        ("api-key: [[a]]\n", "api-key must be a text"),
        ("port:\n", "port has no value; leave the line out"),
        ("seed: 2026-01-01\n", "write a text in quotes"),
        ("seed: 2026-99-99\n", "write a text in quotes"),
        ("seed: !!python/object/apply:os.getcwd []\n", ""),
        ("seed: !!python/name:os.getcwd x\n", "can't be read"),
        (f"seed: {'9' * 5000}\n", "can't be read"),
        ("? [a, b]\n: 1\n", "a key must be the name of a flag"),
        ("[" * 5000, "nested too deeply"),
        (_LAUGHS, "b must be a text"),
    ],
)
def test_what_is_not_flat_yaml_is_refused_with_its_place(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    begin = time.monotonic()
    if not said:  # a list of nothing, whatever its tag says: never built
        assert read_settings(file)[0].value == ()
        return
    with pytest.raises(ConfigError) as caught:
        read_settings(file)
    assert said in str(caught.value)
    assert "settings.yaml" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert time.monotonic() - begin < 5


@pytest.mark.timeout(10)
def test_what_is_no_readable_text_file_is_refused_at_once(file: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file.write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_text("#" * 2**20)
    for name, said in {
        "missing": "No such file",
        ".": "but a directory",
        "pipe": "but a named pipe",
        "settings.yaml": "isn't UTF-8",
        "large": "larger than",
    }.items():
        with pytest.raises(ConfigError, match=said):
            read_settings(tmp_path / name)


def test_what_a_key_has_besides_letters_does_not_reach_the_terminal(file: Path) -> None:
    file.write_text('"a\\e[31m": 1\n"a\\e[31m": 2\n')
    with pytest.raises(ConfigError, match=r"line 2: a\[31m is there already") as raised:
        read_settings(file)
    assert str(raised.value).isprintable()
