from __future__ import annotations

import pytest

from corefw.errors import ConfigError, PluginError, PluginUnavailable
from corefw.interfaces.selection import Rejected
from corefw.plugin_system.selection import Candidate, select


def yes() -> None:
    return None


def no(reason: str = "too small") -> Candidate:
    return "no", lambda: reason


def test_the_first_that_can_is_taken_and_every_other_has_a_reason() -> None:
    selection = select("backend", [no(), ("a", yes), ("b", yes)])
    assert selection.chosen == "a"
    assert selection.rejected == (Rejected("no", "too small"), Rejected("b", "not asked: a comes first"))


def test_those_after_the_first_are_not_asked() -> None:
    def never() -> str | None:
        raise AssertionError("asked")

    assert select("backend", [("a", yes), ("b", never)]).chosen == "a"


def test_when_nobody_can_all_reasons_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no backend can be used: not no: too small; not b: too big"):
        select("backend", [no(), ("b", lambda: "too big")])


def test_without_candidates_the_remedy_is_named() -> None:
    with pytest.raises(ConfigError, match="corefw plugins list"):
        select("backend", [])


def test_the_named_one_is_taken_although_others_come_first() -> None:
    selection = select("backend", [("a", yes), ("b", yes)], named="b")
    assert (selection.chosen, selection.reason) == ("b", "asked for by name")
    assert selection.rejected == (Rejected("a", "not asked: b was asked for"),)


def test_a_named_one_that_cannot_is_never_replaced() -> None:
    with pytest.raises(ConfigError, match=r"'no' was asked for, but can't be used: too small \(others: a\)"):
        select("backend", [("a", yes), no()], named="no")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean torch"):
        select("backend", [("torch", yes)], named="troch")


def test_an_unavailable_plugin_is_a_no_with_its_reason() -> None:
    def unavailable() -> str | None:
        raise PluginUnavailable("no driver")

    assert select("platform", [("npu", unavailable), ("cpu", yes)]).rejected == (Rejected("npu", "no driver"),)


@pytest.mark.parametrize("error", [PluginError("broken"), ImportError("broken"), ValueError("broken")])
def test_a_candidate_that_breaks_is_never_taken_for_a_no(error: Exception) -> None:
    def broken() -> str | None:
        raise error

    with pytest.raises(PluginError, match="broken"):
        select("platform", [("npu", broken), ("cpu", yes)])
