from __future__ import annotations

import pytest

from corefw.engine.suspects import Suspects

IDS = [f"r{i}" for i in range(17)]


def test_after_one_crash_everybody_may_run() -> None:
    suspects = Suspects()
    assert not suspects.crashed(IDS).is_news
    assert suspects.group is None


def test_crashes_without_a_common_request_have_no_suspects() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "b"])
    suspects.crashed(["c"])
    assert suspects.group is None


def test_who_has_got_a_token_since_isnt_suspected() -> None:
    suspects = Suspects()
    suspects.crashed(["a", "b"])
    suspects.clear("a")
    suspects.crashed(["a", "b"])
    assert suspects.group == ("b",)


@pytest.mark.parametrize("poison", [{"r0"}, {"r16"}, {"r5", "r6"}, {"r0", "r8", "r16"}, set(IDS)])
def test_exactly_the_culprits_are_found(poison: set[str]) -> None:
    suspects, left, found = Suspects(), list(IDS), set()
    num_crashes = 0
    while poison - found:
        group = suspects.group
        running = [i for i in left if group is None or i in group]
        if not poison & set(running):
            for request_id in running:
                suspects.clear(request_id)
            continue
        num_crashes += 1
        finding = suspects.crashed(running)
        if finding.culprit is not None:
            assert running == [finding.culprit]
            found.add(finding.culprit)
            left.remove(finding.culprit)
            suspects.clear(finding.culprit)
        assert num_crashes < 2 + 7 * len(poison)
    assert found == poison


def test_one_of_a_group_that_didnt_run_keeps_its_turn() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.crashed(["a", "b", "c", "d"])
    assert suspects.group == ("a", "b")
    suspects.crashed(["b"])
    assert suspects.group == ("a",)


def test_nobody_is_the_culprit_who_had_company() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.crashed(["a"])
    assert suspects.crashed(["a", "cleared"]).culprit is None
    assert suspects.crashed(["a"]).culprit == "a"


def test_a_crash_in_which_none_of_the_group_ran_teaches_nothing() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.crashed(["a", "b"])
    assert not suspects.crashed(["c"]).is_news
    assert suspects.group == ("a",)


def test_the_next_group_runs_once_all_of_the_first_are_cleared() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.crashed(["a", "b", "c"])
    assert suspects.group == ("a", "b")
    assert not suspects.clear("c")  # its turn hadn't come; it won't
    assert not suspects.clear("a")
    assert suspects.clear("b")
    assert suspects.group is None
