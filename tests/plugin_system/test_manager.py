from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable

import pytest

from corefw.config.engine_config import ResolvedPlugin
from corefw.errors import ConfigError, PluginError, PluginUnavailable
from corefw.plugin_system.manager import PluginManager
from tests.plugin_system.conftest import Site

PREPARE = "import json, logging; from corefw.plugin_system.manager import PluginManager; logging.basicConfig();"


def test_names_come_in_order_without_importing_anything(site: Site) -> None:
    site.install("platform")
    site.install("broken")
    code = PREPARE + "import sys; print(PluginManager.discover().names('platform_plugins'), 'torch' in sys.modules)"
    assert site.output(code) == (
        "('cpu', 'a_number', 'absent', 'absent_with_reason', 'from_the_future', 'import_fails', 'not_a_platform', "
        "'toy', 'toy_by_function', 'toy_by_path') False"
    )


@pytest.mark.parametrize("name", ["toy", "toy_by_function", "toy_by_path"])
def test_a_class_a_function_and_a_path_resolve_to_the_class(site: Site, name: str) -> None:
    site.install("platform")
    code = PREPARE + f"print(PluginManager.discover().get('platform_plugins', {name!r}).__name__)"
    assert site.output(code) == "ToyPlatform"


@pytest.mark.parametrize(
    ("name", "reason"), [("absent", "without a reason"), ("absent_with_reason", "no toy driver on this machine")]
)
def test_a_plugin_that_says_no_is_unavailable_with_its_reason(site: Site, name: str, reason: str) -> None:
    site.install("platform")
    manager = PluginManager.discover()
    with pytest.raises(PluginUnavailable, match=reason):
        manager.get("platform_plugins", name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("import_fails", "corefw_sample_missing_driver"),
        ("not_a_platform", "doesn't derive from corefw.interfaces.platform:Platform"),
        ("from_the_future", "version 99 of platform_plugins, this corefw accepts 1"),
        ("a_number", "gives int, not a class"),
    ],
)
def test_a_plugin_that_fails_tells_each_time_it_is_asked_for(site: Site, name: str, reason: str) -> None:
    site.install("broken")
    manager = PluginManager.discover()
    for _ in range(2):
        with pytest.raises(PluginError, match=reason) as caught:
            manager.get("platform_plugins", name)
        assert "corefw-sample-broken 1.0" in str(caught.value)


def test_an_unknown_name_gets_the_nearest_and_the_setting() -> None:
    with pytest.raises(PluginError, match=r"'cpuu' asked for by --platform .*did you mean cpu"):
        PluginManager.discover("").get("platform_plugins", "cpuu", setting="--platform")


def test_a_plugin_that_the_list_leaves_out_names_both_settings(site: Site) -> None:
    site.install("platform")
    with pytest.raises(PluginError, match=r"asked for by --platform .*not allowed: --plugins is set"):
        PluginManager.discover("").get("platform_plugins", "toy", setting="--platform")


def test_an_endpoint_cannot_be_loaded_unless_it_is_named(site: Site) -> None:
    site.install("endpoint")
    with pytest.raises(PluginError, match="denied by default"):
        PluginManager.discover().get("endpoint_plugins", "echo")
    assert "echo" not in PluginManager.discover().names("endpoint_plugins")
    assert PluginManager.discover("echo").get("endpoint_plugins", "echo").name == "echo"


def test_what_is_left_out_is_one_line_and_each_reason_is_for_who_asks(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("endpoint")
    caplog.set_level(logging.DEBUG, "corefw.plugin_system")
    PluginManager.discover()
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert len(told) == 1
    assert told[0].startswith("plugins that are installed and left out: ")
    assert "echo" in told[0]
    assert any("echo" in r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG)


def test_the_variable_counts_unless_the_option_is_given(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("endpoint")
    monkeypatch.setenv("VLLM_PLUGINS", "corefw-sample-endpoint/*")
    assert "echo" in PluginManager.discover().names("endpoint_plugins")
    assert "echo" not in PluginManager.discover("").names("endpoint_plugins")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert "toy" not in PluginManager.discover().names("platform_plugins")


def test_an_empty_list_is_not_the_same_as_none(site: Site) -> None:
    site.install("platform")
    assert "toy" in PluginManager.discover(None).names("platform_plugins")
    assert PluginManager.discover("").names("platform_plugins") == ("cpu",)


def test_an_unknown_name_in_the_list_stops_the_start_and_is_a_warning_on_request(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("endpoint")
    with pytest.raises(ConfigError, match="did you mean echo"):
        PluginManager.discover("ecko")
    with caplog.at_level(logging.WARNING):
        PluginManager.discover("ecko", policy="warn")
    assert "did you mean echo" in caplog.text


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="strict, normal, warn"):
        PluginManager.discover(policy="lax")


def test_two_plugins_of_one_name_stop_the_start_unless_one_is_picked(site: Site) -> None:
    site.install("endpoint")
    site.install("endpoint", distribution="corefw-sample-twin")
    with pytest.raises(PluginError, match=r"corefw-sample-endpoint/echo .* and corefw-sample-twin/echo"):
        PluginManager.discover("echo")
    manager = PluginManager.discover("echo,corefw-sample-twin/echo")
    assert [v.plugin.distribution for v in manager.verdicts if v.allowed and v.plugin.name == "echo"] == [
        "corefw-sample-twin"
    ]


def test_a_failing_plugin_is_logged_with_traceback_and_distribution_and_the_others_load(site: Site) -> None:
    site.install("broken")
    site.install("platform")
    code = PREPARE + "print([p.name for p in PluginManager.discover('-cpux', 'warn').load_all('platform_plugins')])"
    done = site.run(code)
    assert done.returncode == 0
    assert "'toy'" in done.stdout
    assert "import_fails" not in done.stdout
    assert "Traceback" in done.stderr
    assert "import_fails (platform_plugins) of corefw-sample-broken 1.0 failed to load" in done.stderr


@pytest.mark.parametrize(("allow", "policy"), [("import_fails", "normal"), ("import_fails", "warn"), (None, "strict")])
def test_a_named_plugin_that_fails_stops_the_start_and_strict_stops_for_any(
    site: Site, allow: str | None, policy: str
) -> None:
    site.install("broken")
    done = site.run(PREPARE + f"PluginManager.discover({allow!r}, {policy!r}).load_all('platform_plugins')")
    assert done.returncode != 0
    assert "PluginError" in done.stderr
    assert "corefw-sample-broken" in done.stderr


def test_a_built_in_that_fails_always_stops_the_start(site: Site) -> None:
    code = PREPARE + (
        "import corefw.plugin_system.manager as m, sys; sys.modules['corefw.builtins.platforms.cpu'] = None;"
        "PluginManager.discover().load_all('platform_plugins')"
    )
    done = site.run(code)
    assert done.returncode != 0
    assert "PluginError: plugin 'cpu'" in done.stderr


def test_a_plugin_that_calls_exit_does_not_end_the_process(site: Site) -> None:
    (site.path / "sample_exits.py").write_text("import sys; sys.exit(3)\n", encoding="utf-8")
    site.metadata("corefw-sample-exits", "1.0", {"corefw.general_plugins": {"exits": "sample_exits"}})
    assert site.output(PREPARE + "PluginManager.discover().load_general('cli'); print('still here')") == "still here"


def test_general_plugins_load_once_and_hooks_hear_it_once_per_process(site: Site) -> None:
    site.install("general")
    log = site.path / "log"
    code = PREPARE + (
        "import os; from corefw_sample_general import registrar;"
        "m = PluginManager.discover();"
        "names = [[p.name for p in m.load_general('worker') if 'sample' in p.distribution] for _ in range(3)];"
        "print(json.dumps([os.getpid(), names, registrar.CALLS]))"
    )
    pids = set()
    for _ in range(2):
        pid, names, calls = json.loads(site.output(code, COREFW_SAMPLE_LOG=str(log)))
        pids.add(f"{pid} worker")
        assert names == [["process_log", "registrar"]] * 3
        assert calls == ["register"]
    lines = log.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert set(lines) == pids


def test_an_unknown_process_role_is_refused() -> None:
    with pytest.raises(PluginError, match="did you mean worker"):
        PluginManager.discover("").load_general("workers")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("misspelt", "unknown hook corefw_loadde; did you mean corefw_loaded"),
        ("unmarked", "isn't marked with @hookimpl"),
        ("hook_fails", "sample hook failure"),
        ("import_fails", "corefw_sample_missing_driver"),
    ],
)
def test_a_broken_general_plugin_is_failed_with_the_reason(site: Site, name: str, reason: str) -> None:
    site.install("broken")
    named = f"PluginManager.discover('general_plugins:{name}').load_general('cli')"
    done = site.run(PREPARE + named)
    assert done.returncode != 0
    assert reason in done.stderr
    loaded = "[p.name for p in PluginManager.discover().load_general('cli') if 'sample' in p.distribution]"
    by_default = site.run(PREPARE + f"print({loaded})")
    assert (by_default.returncode, by_default.stdout.strip()) == (0, "[]")
    assert reason in by_default.stderr


def test_a_function_that_returns_something_is_no_general_plugin(site: Site) -> None:
    (site.path / "sample_returns.py").write_text("def register():\n    return 1\n", encoding="utf-8")
    site.metadata("corefw-sample-returns", "1.0", {"corefw.general_plugins": {"returns": "sample_returns:register"}})
    done = site.run(PREPARE + "PluginManager.discover('returns').load_general('cli')")
    assert "it has to return nothing" in done.stderr


def test_a_child_has_exactly_the_parents_set(site: Site) -> None:
    site.install("platform")
    resolved = PluginManager.discover("toy").resolved()
    child = PluginManager.from_resolved(resolved)
    assert child.resolved() == resolved
    assert child.names("platform_plugins") == ("cpu", "toy")
    with pytest.raises(PluginError, match="not in the set that the parent resolved"):
        child.get("platform_plugins", "absent")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "2.0"}, r"corefw-sample-platform/toy is 1.0 .* here, 2.0 .* there"),
        ({"value": "elsewhere:Toy"}, r"here, 1.0 \(elsewhere:Toy\) there"),
        ({"distribution": "gone"}, r"gone/toy 1.0 isn't installed here"),
        ({"name": "gone"}, r"corefw-sample-platform/gone 1.0 isn't installed here"),
    ],
)
def test_a_child_that_finds_another_set_refuses(site: Site, change: dict[str, str], message: str) -> None:
    site.install("platform")
    resolved = [
        dataclasses.replace(plugin, **change) if plugin.name == "toy" else plugin
        for plugin in PluginManager.discover().resolved()
    ]
    with pytest.raises(PluginError, match=message):
        PluginManager.from_resolved(resolved)


def test_a_child_stops_for_what_the_parents_operator_named(site: Site) -> None:
    site.install("broken")
    resolved = PluginManager.discover("platform_plugins:import_fails").resolved()
    assert ResolvedPlugin in {type(plugin) for plugin in resolved}
    child = PluginManager.from_resolved(resolved)
    with pytest.raises(PluginError, match="corefw_sample_missing_driver"):
        child.load_all("platform_plugins")


def test_an_incompatible_plugin_is_a_warning_and_an_error_under_strict(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.metadata("corefw-sample-typo", "1.0", {"corefw.platform_plugin": {"npu": "sample:Npu"}})
    with caplog.at_level(logging.WARNING):
        PluginManager.discover()
    assert "corefw-sample-typo/npu (platform_plugin): incompatible" in caplog.text
    with pytest.raises(PluginError, match="incompatible"):
        PluginManager.discover(policy="strict")


def test_the_digest_is_the_same_in_every_process_and_differs_with_the_set(site: Site) -> None:
    site.install("platform")
    manager = PluginManager.discover("toy")
    code = PREPARE + "print(PluginManager.discover('toy').digest())"
    assert site.output(code) == manager.digest() == PluginManager.from_resolved(manager.resolved()).digest()
    assert PluginManager.discover("").digest() != manager.digest()
    changed = [dataclasses.replace(p, named=not p.named) for p in manager.resolved()]
    assert PluginManager.from_resolved(changed).digest() == manager.digest()


def test_a_plugin_of_a_reserved_group_cannot_be_asked_for(site: Site) -> None:
    site.install("broken")
    reason = "unavailable: the group proposers is reserved"
    with pytest.raises(PluginError, match=reason):
        PluginManager.discover().get("proposers", "too_early", setting="--proposer")
    with pytest.raises(PluginError, match=reason):
        PluginManager.discover("too_early")
    assert PluginManager.discover().names("proposers") == ()


def test_a_range_of_other_versions_is_incompatible_before_anything_is_imported(site: Site) -> None:
    site.install("broken")
    with pytest.raises(PluginError, match="written for version 7 to 9 of model_loaders, this corefw accepts 1"):
        PluginManager.discover("from_a_later_range")


def test_one_name_in_two_distributions_is_told_once_both_may_load(site: Site) -> None:
    site.install("broken")
    site.install("endpoint")
    assert "echo" not in PluginManager.discover().names("endpoint_plugins")
    with pytest.raises(PluginError, match=r"2 plugins of endpoint_plugins are called 'echo'"):
        PluginManager.discover("echo")


def test_a_hook_module_may_have_imported_specifications(site: Site, write_module: Callable[[str, str], None]) -> None:
    source = (
        "from corefw.interfaces.hooks.http import *\n"
        "from corefw.sdk.plugins import hookimpl\n\n\n@hookimpl\ndef corefw_loaded(process):\n    print(process)\n"
    )
    write_module("star", source)
    site.metadata("star", "1", {"corefw.general_plugins": {"star": "star"}})
    code = PREPARE + "print([p.name for p in PluginManager.discover('star').load_general('cli')])"
    assert site.output(code) == "['star']"
