from __future__ import annotations

import time

from corefw.plugin_system.discovery import FoundPlugin, find_plugins
from tests.plugin_system.conftest import Site


def _external(found: tuple[FoundPlugin, ...]) -> list[FoundPlugin]:
    return [plugin for plugin in found if plugin.distribution.startswith("corefw-sample")]


def test_built_ins_come_first_then_group_name_and_distribution(site: Site) -> None:
    site.install("platform")
    site.install("general")
    found = find_plugins()
    builtins = [plugin.builtin for plugin in found]
    assert builtins == sorted(builtins, reverse=True)
    external = [(p.group, p.name, p.distribution) for p in _external(found)]
    assert external == sorted(external)
    assert ("platform_plugins", "toy", "corefw-sample-platform") in external


def test_finding_imports_no_plugin(site: Site) -> None:
    site.install("broken")
    code = (
        "import sys; from corefw.plugin_system.discovery import find_plugins; found = find_plugins();"
        "print(any(p.name == 'import_fails' for p in found), 'corefw_sample_broken' in sys.modules)"
    )
    assert site.output(code) == "True False"


def test_finding_is_fast() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        find_plugins()
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.09


def test_stale_metadata_beside_an_editable_install_counts_once(site: Site) -> None:
    groups = {"corefw.general_plugins": {"thing": "sample_thing:register"}}
    site.metadata("corefw-sample-stale", "1.0", groups)
    site.metadata("corefw_sample_stale", "1.0", groups, suffix="egg-info")
    assert [p.full_name for p in _external(find_plugins())] == ["corefw-sample-stale/thing"]


def test_a_distribution_is_called_by_its_normalised_name(site: Site) -> None:
    site.metadata("Corefw_Sample.Odd", "2.0", {"corefw.general_plugins": {"odd": "odd:register"}})
    assert [(p.full_name, p.version) for p in _external(find_plugins())] == [("corefw-sample-odd/odd", "2.0")]


def test_a_declared_interface_version_is_read_without_importing(site: Site) -> None:
    groups = {
        "corefw.platform_plugins": {"future": "missing_module:Platform"},
        "corefw.api_versions": {"platform_plugins": "v7"},
    }
    site.metadata("corefw-sample-future", "1.0", groups)
    (plugin,) = _external(find_plugins())
    assert (plugin.group, plugin.api_version) == ("platform_plugins", "v7")


def test_plugins_of_a_group_go_by_priority_before_they_go_by_name(site: Site) -> None:
    plugins = {name: f"thing:{name}" for name in ("a", "b", "c", "d")}
    for distribution, priorities in (
        ("corefw-sample-one", {"c": "p7", "d": "p60"}),
        ("corefw-sample-two", {"b": "p0"}),
    ):
        named = {f"{name}_{distribution[-3:]}": value for name, value in plugins.items()}
        stated = {f"{name}_{distribution[-3:]}": value for name, value in priorities.items()}
        site.metadata(distribution, "1.0", {"corefw.general_plugins": named, "corefw.priorities": stated})
    names = [plugin.name for plugin in _external(find_plugins())]
    assert names == ["c_one", "a_one", "a_two", "b_one", "b_two", "c_two", "d_two", "d_one"]
