from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corefw.errors import ConfigError
from corefw.plugin_system.allowlist import Allowlist, Mode
from corefw.plugin_system.discovery import FoundPlugin
from corefw.plugin_system.groups import GROUPS, DefaultPolicy, Group
from corefw.plugin_system.verdicts import State, Verdict, judge


def found(full_name: str, group: str, value: str = "module:Class", api_version: str | None = None) -> FoundPlugin:
    distribution, _, name = full_name.partition("/")
    return FoundPlugin(
        group=group,
        name=name,
        value=value,
        distribution=distribution,
        version="1.0",
        api_version=api_version,
    )


INSTALLED = (
    found("corefw/cpu", "platform_plugins"),
    found("corefw/system", "endpoint_plugins"),
    found("acme/npu", "platform_plugins"),
    found("acme/console", "endpoint_plugins"),
    found("acme/shared", "general_plugins"),
    found("other/shared", "platform_plugins"),
    found("other/pages", "endpoint_plugins"),
)
BUILT_INS = {"corefw/cpu", "corefw/system"}
BY_DEFAULT = BUILT_INS | {"acme/npu", "acme/shared", "other/shared"}


def verdicts(text: str | None, plugins: tuple[FoundPlugin, ...] = INSTALLED) -> dict[str, Verdict]:
    judged, _ = judge(plugins, Allowlist.parse(text, "--plugins"))
    return {verdict.plugin.full_name: verdict for verdict in judged}


def allowed(text: str | None) -> set[str]:
    return {name for name, verdict in verdicts(text).items() if verdict.allowed}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, BY_DEFAULT),
        ("", BUILT_INS),
        ("  ", BUILT_INS),
        (" , ", BUILT_INS),
        ("npu", BUILT_INS | {"acme/npu"}),
        (" npu , console ", BUILT_INS | {"acme/npu", "acme/console"}),
        ("shared", BUILT_INS | {"acme/shared", "other/shared"}),
        ("acme/shared", BUILT_INS | {"acme/shared"}),
        ("ACME / shared", BUILT_INS | {"acme/shared"}),
        ("acme/*", BUILT_INS | {"acme/npu", "acme/console", "acme/shared"}),
        ("platform_plugins:shared", BUILT_INS | {"other/shared"}),
        ("corefw.platform_plugins:shared", BUILT_INS | {"other/shared"}),
        ("+console", BY_DEFAULT | {"acme/console"}),
        ("-npu", BY_DEFAULT - {"acme/npu"}),
        ("- npu, +other/pages", BY_DEFAULT - {"acme/npu"} | {"other/pages"}),
        ("-acme/*", BY_DEFAULT - {"acme/npu", "acme/shared"}),
        ("-general_plugins:shared", BY_DEFAULT - {"acme/shared"}),
        ("cpu", BUILT_INS),
    ],
)
def test_a_list_allows_what_it_says(text: str | None, expected: set[str]) -> None:
    assert allowed(text) == expected


def test_an_endpoint_is_denied_by_default_and_says_how_to_allow_it() -> None:
    verdict = verdicts(None)["acme/console"]
    assert verdict.state is State.DENIED
    assert "+console" in verdict.reason


def test_what_a_set_list_leaves_out_is_not_allowed_and_names_the_setting() -> None:
    verdict = verdicts("npu")["acme/console"]
    assert (verdict.state, verdict.reason) == (State.NOT_ALLOWED, "--plugins is set and doesn't name it")


def test_what_a_minus_takes_out_names_the_entry() -> None:
    assert verdicts("-npu")["acme/npu"].reason == "taken out by -npu in --plugins"


def test_only_what_is_written_down_counts_as_named() -> None:
    judged = verdicts("npu")
    assert judged["acme/npu"].named
    assert not judged["acme/shared"].named
    assert not verdicts(None)["acme/npu"].named
    assert not verdicts("cpu")["corefw/cpu"].named


@pytest.mark.parametrize("text", ["npu,+console", "-npu,console"])
def test_plain_and_signed_entries_do_not_mix(text: str) -> None:
    with pytest.raises(ConfigError, match="mixes plain names"):
        Allowlist.parse(text, "VLLM_PLUGINS")


@pytest.mark.parametrize(
    "text", ["*", "/x", "a/", "a/b/c", "+", "a:", ":a", "x*", "*/x", "general_plugins:*", "+-npu", "-+npu", "--npu"]
)
def test_an_entry_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="VLLM_PLUGINS"):
        Allowlist.parse(text, "VLLM_PLUGINS")


def test_an_unknown_group_in_an_entry_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean platform_plugins"):
        Allowlist.parse("platform_plugin:cpu", "--plugins")


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("npuu", "npu"),
        ("acm/npu", "acme/npu"),
        ("acmee/*", "acme/*"),
        ("platform_plugins:npo", "platform_plugins:npu"),
        ("+consol", "console"),
    ],
)
def test_a_name_that_matches_nothing_names_the_nearest(text: str, nearest: str) -> None:
    (complaint,) = Allowlist.parse(text, "--plugins").complaints(INSTALLED)
    assert "matches no installed plugin" in complaint
    assert nearest in complaint.partition("did you mean")[2]


def test_adding_what_is_removed_again_is_a_complaint() -> None:
    (complaint,) = Allowlist.parse("+npu,-acme/npu", "--plugins").complaints(INSTALLED)
    assert complaint == "--plugins adds 'npu' and removes it again; leave one of both out"
    assert Allowlist.parse("+acme/*,-npu", "--plugins").complaints(INSTALLED) == ()


def test_taking_out_a_built_in_is_a_complaint() -> None:
    (complaint,) = Allowlist.parse("-cpu", "--plugins").complaints(INSTALLED)
    assert "built in" in complaint


TWINS = (found("acme/npu", "platform_plugins"), found("zeta/npu", "platform_plugins", "zeta:Npu"))


@pytest.mark.parametrize("text", [None, "npu", "acme/*,zeta/*", "acme/npu,zeta/npu"])
def test_two_plugins_of_one_name_are_a_problem_that_names_both(text: str | None) -> None:
    _, problems = judge(TWINS, Allowlist.parse(text, "--plugins"))
    (problem,) = problems
    assert "acme/npu" in problem
    assert "zeta/npu" in problem
    assert "distribution/name" in problem


@pytest.mark.parametrize("text", ["+zeta/npu", "npu,zeta/npu"])
def test_a_picked_plugin_shadows_its_namesake(text: str) -> None:
    judged, problems = judge(TWINS, Allowlist.parse(text, "--plugins"))
    assert problems == ()
    assert [v.state for v in judged] == [State.SHADOWED, State.FOUND]
    assert "zeta/npu was picked" in judged[0].reason


def test_a_namesake_of_a_built_in_has_to_be_picked() -> None:
    plugins = (*INSTALLED, found("acme/cpu", "platform_plugins"))
    _, problems = judge(plugins, Allowlist.parse(None, "--plugins"))
    assert len(problems) == 1
    assert verdicts("+acme/cpu", plugins)["corefw/cpu"].state is State.SHADOWED
    assert verdicts("+corefw/cpu", plugins)["acme/cpu"].state is State.SHADOWED


def test_namesakes_that_may_not_load_are_no_problem() -> None:
    plugins = (found("acme/page", "endpoint_plugins"), found("zeta/page", "endpoint_plugins"))
    assert judge(plugins, Allowlist.parse(None, "--plugins"))[1] == ()


def test_one_distribution_with_one_name_twice_is_a_problem() -> None:
    plugins = (found("acme/npu", "platform_plugins", "a:A"), found("acme/npu", "platform_plugins", "b:B"))
    (problem,) = judge(plugins, Allowlist.parse("acme/npu", "--plugins"))[1]
    assert "a:A" in problem
    assert "b:B" in problem


def test_a_plugin_of_an_unknown_group_is_incompatible_and_names_the_nearest() -> None:
    verdict = verdicts(None, (found("acme/x", "platform_plugin"),))["acme/x"]
    assert verdict.state is State.INCOMPATIBLE
    assert "did you mean platform_plugins" in verdict.reason


@pytest.mark.parametrize("declared", ["v2", "v0", "vx", "later", "v2:v9", "v2:v1", "v1:", "v1.v2"])
def test_a_declared_version_out_of_range_is_incompatible(declared: str) -> None:
    plugin = found("acme/npu", "platform_plugins", api_version=declared)
    assert verdicts(None, (plugin,))["acme/npu"].state is State.INCOMPATIBLE
    (problem,) = judge((plugin,), Allowlist.parse("npu", "--plugins"))[1]
    assert "incompatible" in problem


@pytest.mark.parametrize("declared", ["v1", "1", "v1:v2", "v0:v1", "1:3"])
def test_a_declared_range_with_an_accepted_version_is_found(declared: str) -> None:
    plugin = found("acme/npu", "platform_plugins", api_version=declared)
    assert verdicts(None, (plugin,))["acme/npu"].state is State.FOUND


USED = [group for group in GROUPS if not group.reserved]


def world(group: str) -> tuple[FoundPlugin, ...]:
    """A built-in, two plugins of one distribution, one of another, and one of another group, all in use."""
    elsewhere = next(other.name for other in USED if other.name != group)
    return (
        found("corefw/own", group),
        found("acme/a", group),
        found("acme/b", group),
        found("zeta/c", group),
        found("zeta/a", elsewhere),
    )


@pytest.mark.parametrize("group", USED, ids=lambda group: group.name)
@pytest.mark.parametrize(
    ("text", "where_allowed", "where_denied"),
    [
        (None, "abc", ""),
        ("", "", ""),
        ("own", "", ""),
        ("a", "a", "a"),
        ("acme/a", "a", "a"),
        ("acme/*", "ab", "ab"),
        ("GROUP:a", "a", "a"),
        ("corefw.GROUP:c", "c", "c"),
        ("GROUP:acme/b", "b", "b"),
        (" a , zeta/c ", "ac", "ac"),
        ("+a", "abc", "a"),
        ("+acme/*,+GROUP:c", "abc", "abc"),
        ("-a", "bc", ""),
        ("-acme/*", "c", ""),
        ("-GROUP:c, +acme/b", "ab", "b"),
    ],
)
def test_every_form_means_the_same_in_every_group(
    group: Group, text: str | None, where_allowed: str, where_denied: str
) -> None:
    plugins = world(group.name)
    allowlist = Allowlist.parse(text and text.replace("GROUP", group.name), "--plugins")
    judged, problems = judge(plugins, allowlist)
    here = {v.plugin.name for v in judged if v.allowed and v.plugin.group == group.name}
    assert here == {"own", *(where_denied if group.policy is DefaultPolicy.DENY else where_allowed)}
    assert (problems, allowlist.complaints(plugins)) == ((), ())


RESERVED = [group.name for group in GROUPS if group.reserved]


@pytest.mark.parametrize("group", RESERVED)
def test_a_plugin_of_a_reserved_group_is_unavailable_and_cannot_be_asked_for(group: str) -> None:
    plugin = found("acme/p", group)
    verdict = verdicts(None, (plugin,))["acme/p"]
    assert (verdict.state, verdict.allowed) == (State.UNAVAILABLE, False)
    assert f"group {group} is reserved" in verdict.reason
    for text in ("p", "+acme/p", f"{group}:p"):
        (problem,) = judge((plugin,), Allowlist.parse(text, "--plugins"))[1]
        assert f"acme/p was asked for in --plugins, but is unavailable: the group {group} is reserved" in problem


def test_an_entry_that_means_other_plugins_too_may_name_a_reserved_one() -> None:
    plugins = (found("acme/p", "platform_plugins"), found("acme/p", RESERVED[0]))
    for text in ("p", "acme/*"):
        assert judge(plugins, Allowlist.parse(text, "--plugins"))[1] == ()


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.text(alphabet="ab/*:+-, .", max_size=20))
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    try:
        parsed = Allowlist.parse(text, "--plugins")
    except ConfigError:
        return
    assert parsed.mode is not Mode.UNSET
    assert {v.plugin.full_name for v in judge(INSTALLED, parsed)[0] if v.allowed} >= BUILT_INS
