from __future__ import annotations

import pytest

from corefw.plugin_system.blame import told
from corefw.plugin_system.contributions import Contribution, Guarded


def test_an_error_is_told_on_one_short_line_without_control_characters() -> None:
    text = told(ValueError("first\nsecond \x1b[31m" + "x" * 10_000))
    assert text.startswith("ValueError: first second  [31mxx")
    assert len(text) == 500


def test_an_error_that_cannot_tell_its_message_is_told_all_the_same() -> None:
    class MumbleError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert told(MumbleError()) == "MumbleError: its message can't be made"


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("no")])
def test_a_guarded_call_that_asks_to_end_is_a_failure_like_any(error: BaseException) -> None:
    def fails() -> None:
        raise error

    guarded = Guarded(Contribution("acme", "acme-parts", "corefw_hook", fails))
    assert [guarded.run(fails) for _ in range(3)] == [None, None, None]
    assert guarded.quarantined is not None
    assert type(error).__name__ in guarded.quarantined
