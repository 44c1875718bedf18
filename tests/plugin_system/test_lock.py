from __future__ import annotations

import json
from pathlib import Path

import pytest

from corefw.errors import ConfigError, PluginError
from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from corefw.plugin_system.lock import differences, distribution_files, lock_of, read_lock, render_lock
from corefw.plugin_system.manager import PluginManager
from tests.plugin_system.conftest import Site


def general() -> list[FoundPlugin]:
    return [plugin for plugin in find_plugins() if plugin.distribution == "corefw-sample-general"]


def record(site: Site, *names: str) -> None:
    lines = [*(f"{name},sha256=x,1" for name in names), "../../bin/sample,,", "x/__pycache__/y.pyc,,"]
    (site.path / "corefw_sample_general-1.0.dist-info" / "RECORD").write_text("\n".join(lines), encoding="utf-8")


def write_lock(site: Site) -> Path:
    file = site.path / "lock.json"
    resolved = [v.plugin for v in PluginManager.discover().verdicts if v.allowed]
    file.write_text(render_lock(lock_of(resolved)), encoding="utf-8")
    return file


def test_a_lock_is_read_as_it_was_written_and_written_the_same_again(site: Site) -> None:
    site.install("general")
    lock = lock_of(find_plugins())
    text = render_lock(lock)
    (site.path / "lock.json").write_text(text, encoding="utf-8")
    assert read_lock(site.path / "lock.json") == lock
    assert render_lock(lock_of(reversed(find_plugins()))) == text


def test_the_locked_set_starts(site: Site) -> None:
    site.install("general")
    lock = write_lock(site)
    assert PluginManager.discover(lock=str(lock)).resolved() == PluginManager.discover().resolved()


def test_each_kind_of_difference_is_told(site: Site) -> None:
    site.install("general")
    site.install("platform")
    lock = write_lock(site)
    before = read_lock(lock)
    document = json.loads(lock.read_text(encoding="utf-8"))
    by_name = {entry["name"]: entry for entry in document["distributions"]}
    by_name["corefw-sample-general"]["version"] = "0.9"
    by_name["corefw-sample-platform"]["plugins"].append("platform_plugins:gone = gone:Gone")
    by_name["corefw-sample-platform"]["plugins"].remove(
        next(text for text in by_name["corefw-sample-platform"]["plugins"] if ":toy =" in text)
    )
    by_name["corefw"]["hash"] = "sha256:0"
    document["distributions"].append(
        {"name": "uninstalled", "version": "4", "hash": "sha256:1", "plugins": ["platform_plugins:x = x:X"]}
    )
    lock.write_text(json.dumps(document), encoding="utf-8")
    told = " | ".join(differences(read_lock(lock), before))
    assert "missing: uninstalled 4" in told
    assert "version: corefw-sample-general is 1.0, locked is 0.9" in told
    assert "missing: corefw-sample-platform, platform_plugins:gone = gone:Gone" in told
    assert "extra: corefw-sample-platform, platform_plugins:toy =" in told
    assert "hash: the files of corefw " in told
    with pytest.raises(PluginError, match=r"aren't those of --plugin-lock .*missing: uninstalled 4"):
        PluginManager.discover(lock=str(lock))


def test_an_extra_distribution_is_refused(site: Site) -> None:
    lock = write_lock(site)
    site.install("general")
    with pytest.raises(PluginError, match=r"extra: corefw-sample-general 1.0 \(general_plugins:process_log"):
        PluginManager.discover(lock=str(lock))
    without = PluginManager.discover("-corefw-sample-general/*", lock=str(lock))
    assert not {"process_log", "registrar"} & set(without.names("general_plugins"))


@pytest.mark.parametrize("recorded", [False, True], ids=["editable", "recorded"])
def test_a_changed_file_changes_the_hash(site: Site, recorded: bool) -> None:
    site.install("general")
    if recorded:
        record(site, *(f"corefw_sample_general/{name}.py" for name in ("__init__", "process_log", "registrar")))
    (before,) = lock_of(general())
    file = site.path / "corefw_sample_general" / "registrar.py"
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    (after,) = lock_of(general())
    assert before.hash != after.hash
    assert len(differences([before], [after])) == 1


def test_an_editable_install_and_a_wheel_of_one_source_have_one_hash(site: Site) -> None:
    site.install("general")
    editable = lock_of(general())
    record(site, *(f"corefw_sample_general/{name}.py" for name in ("registrar", "__init__", "process_log")))
    assert lock_of(general()) == editable
    assert [name for name, _ in distribution_files(general())] == [
        f"corefw_sample_general/{name}.py" for name in ("__init__", "process_log", "registrar")
    ]


def test_bytecode_changes_no_hash(site: Site) -> None:
    site.install("general")
    before = lock_of(general())
    cache = site.path / "corefw_sample_general" / "__pycache__"
    cache.mkdir()
    (cache / "registrar.cpython-311.pyc").write_bytes(b"x")
    assert lock_of(general()) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"corefw_plugin_lock": 2, "distributions": []}',
        "[" * 100_000,
        '{"corefw_plugin_lock": 1, "distributions": [{"name": "a", "version": "1", "hash": 3, "plugins": []}]}',
        '{"corefw_plugin_lock": 1, "distributions": [{"name": "a", "version": "1", "hash": "", "plugins": [], "x": 1}]}',  # noqa: E501
    ],
)
def test_what_is_no_lock_is_refused_and_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lock.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--plugin-lock .*lock\.json"):
        read_lock(file)


def test_a_lock_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        PluginManager.discover(lock=str(tmp_path / "none.json"))
