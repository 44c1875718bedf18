from __future__ import annotations

from corefw.engine.journal import Journal


def test_only_calls_that_set_something_are_kept() -> None:
    journal = Journal()
    journal.record("stats", [])
    journal.record("some.plugin", [1])
    assert list(journal) == []


def test_the_last_call_about_a_thing_counts() -> None:
    journal = Journal()
    journal.record("set_log_level", ["DEBUG"])
    journal.record("set_log_level", ["ERROR"])
    assert list(journal) == [("set_log_level", ["ERROR"])]
