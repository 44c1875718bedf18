"""``--config``: a file's settings are flags, and the command line's own flags win."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from corefw.cli.main import _COMMANDS
from corefw.cli.parser import Parser
from corefw.config.args import UserArgs
from tests.cli.commands import corefw

_MODULES = {name: module for name, module, _ in _COMMANDS}


def _parsed(file: Path, text: str, *words: str) -> dict[str, object]:
    file.write_text(text)
    command, *rest = words
    parser = Parser(prog=f"corefw {command}")
    importlib.import_module(_MODULES[command]).add_arguments(parser)
    return vars(parser.parse_args([*rest, "--config", str(file)]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "corefw.yaml"


def test_a_file_counts_as_what_the_user_set(file: Path) -> None:
    text = "model: m\nport: 1\nkv_cache_memory: 2MiB\ndtype: Float32\nenable-prefix-caching: false\napi-key: [a, b]\n"
    found = _parsed(file, text, "serve")
    values = {key: value for key, value in found.items() if "." in key}
    assert values == {
        "model.model": "m",
        "server.port": 1,
        "cache.kv_cache_memory": 2 * 2**20,
        "model.dtype": "float32",
        "cache.enable_prefix_caching": False,
        "server.api_key": ["a", "b"],
    }


def test_a_file_without_flags_leaves_no_trace(file: Path) -> None:
    assert [key for key in _parsed(file, "", "serve") if "." in key] == []


def test_the_command_line_wins_and_replaces_lists(file: Path) -> None:
    text = "model: m\nport: 1\nenable-prefix-caching: false\napi-key: [a, b]\n"
    words = ("serve", "n", "--port=2", "--enable-prefix-caching", "--api-key", "c")
    found = _parsed(file, text, *words)
    assert found["model.model"] == "n"
    assert found["server.port"] == 2
    assert found["cache.enable_prefix_caching"] is True
    assert found["server.api_key"] == ["c"]


@pytest.mark.parametrize(
    "words", [("generate",), ("chat",), ("complete",), ("bench", "throughput"), ("bench", "latency"), ("bench", "step")]
)
def test_every_command_with_an_engine_takes_a_file(file: Path, words: tuple[str, ...]) -> None:
    found = _parsed(file, "model: m\nmax-num-seqs: 3\n", *words)
    assert found["model.model"] == "m"
    assert found["scheduler.max_num_seqs"] == 3


def test_a_file_gives_required_flags_and_those_of_sampling(file: Path) -> None:
    found = _parsed(file, "input-file: a.jsonl\noutput_file: b\nmax-concurrency: 3\n", "run-batch")
    assert (found["input_file"], found["output_file"], found["max_concurrency"]) == ("a.jsonl", "b", 3)
    found = _parsed(file, "temperature: 0\nstop: [a]\nignore-eos: true\ninput-file: x\n", "generate", "-iy")
    assert found["sampling:temperature"] == 0
    assert found["sampling:stop"] == ["a"]
    assert found["sampling:ignore_eos"] is True
    assert found["input_file"] == "y"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m\nprot: 1\n", "corefw.yaml, line 2: 'prot' is no flag of corefw serve; did you mean port?"),
        ("port: '8000'\n", "line 1: port must be a whole number, got str"),
        ("port: 70000\n", "line 1: port must be in [0, 65535], got 70000"),
        ("port: true\n", "port must be a whole number, got bool"),
        ("port: [1, 2]\n", "port takes one value, got a list"),
        ("enable-prefix-caching: 'no'\n", "enable-prefix-caching must be true or false, got str"),
        ("tokenizer: 7\n", "tokenizer must be text, got int"),
        ("dtype: float64\n", "dtype 'float64' is unknown; use one of auto, float32"),
        ("api-key: [1]\n", "api-key must be a list of texts"),
        ("kv-cache-memory: much\n", "kv-cache-memory: 'much' is not a size"),
        ("config: other.yaml\n", "'config' is no flag"),
        ("resolved: []\n", "'resolved' is no flag"),
        ("watermark: .nan\n", "watermark must be in"),
    ],
)
def test_a_wrong_setting_names_file_line_key_and_what_is_accepted(
    file: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        _parsed(file, text, "serve")
    shown = capsys.readouterr().err
    assert caught.value.code == 2
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n: x\n", "n must be a whole number, got str"),
        ("temperature: hot\n", "temperature must be a number, got str"),
        ("input-file: [a]\n", "input-file must be a text"),
        ("ignore-eos: 1\n", "ignore-eos must be true or false, got int"),
        ("port: 1\n", "'port' is no flag of corefw generate"),
    ],
)
def test_a_commands_own_flags_are_checked_too(
    file: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _parsed(file, text, "generate")
    assert said in capsys.readouterr().err


def test_a_file_of_an_unknown_user_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="corefw serve")
    importlib.import_module(_MODULES["serve"]).add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--config", "~nobody-has-this-name/corefw.yaml"])
    assert "can't be read: No such file" in capsys.readouterr().err


def test_a_model_runs_as_its_file_says(file: Path, tiny: Path) -> None:
    file.write_text(f"model: {tiny}\ndtype: float32\nkv-cache-memory: 16MiB\nmax-tokens: 3\nignore-eos: true\n")
    done = corefw("generate", "Hello", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["outputs"][0]["token_ids"]) == 3


def test_settings_of_a_file_are_explicit(file: Path) -> None:
    args = UserArgs({key: value for key, value in _parsed(file, "seed: 3\n", "serve").items() if "." in key})
    assert args.explicit == {"model.seed"}
