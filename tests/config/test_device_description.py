from __future__ import annotations

from pathlib import Path

import pytest

from corefw.builtins.platforms.cpu import CpuPlatform
from corefw.config.device_description import DeviceDescription, read_device_description
from corefw.errors import ConfigError


def read(folder: Path, text: str) -> DeviceDescription:
    file = folder / "device.yaml"
    file.write_text(text)
    return read_device_description(file)


@pytest.mark.parametrize(
    "text",
    [
        '{"platform": "big", "name": "Big 2", "capability": "2.0", "memory": "80GiB", "dtypes": ["bfloat16"]}',
        "platform: big\nname: Big 2\ncapability: 2.0\nmemory: 80GiB\ndtypes: [bfloat16]\n",
    ],
    ids=["json", "yaml"],
)
def test_a_device_is_read_from_json_and_yaml(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == DeviceDescription(
        platform="big", name="Big 2", capability="2.0", memory_bytes=80 * 2**30, dtypes=("bfloat16",)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must be a mapping"),
        ("name: x", "must name its platform"),
        ("platform: x\nmemroy: 1", "'memroy' is unknown; known are platform, name, capability, dtypes, memory"),
        ("platform: x\nmemory: much", "'much' is not a size"),
        ("platform: x\ndtypes: bfloat16", "dtypes must be a list of names"),
        ("platform: x\nnum_devices: 0", "num_devices must be a whole number above 0"),
        ("platform: [", "neither JSON nor YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_accepted(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read(tmp_path, text)


def test_a_file_that_isnt_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_device_description(tmp_path / "none.json")


def test_the_cpu_platform_answers_for_another_processor() -> None:
    plain = CpuPlatform.from_capability(DeviceDescription(platform="cpu"))
    assert plain.dtypes() == ("float32",)
    described = DeviceDescription(platform="cpu", features=("avx512_bf16",))
    assert CpuPlatform.from_capability(described).dtypes() == ("bfloat16", "float32")
