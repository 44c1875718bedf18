"""The line of a death that is shown."""

from __future__ import annotations

from ray.exceptions import RayError

from corefw_executor_ray.told import cause_of


def test_of_a_death_its_cause_is_told_and_none_of_ray_s_guesses() -> None:
    died = RayError(
        "The actor died unexpectedly before finishing this task.\n\tclass_name: CoreActor\n"
        "The actor is dead because its worker process has died. Worker exit detail: End of file. "
        "Some common causes include: (1) the process was killed by the OOM killer"
    )
    assert cause_of(died) == ("The actor is dead because its worker process has died. Worker exit detail: End of file")


def test_a_death_without_a_word_is_told_by_its_kind() -> None:
    assert cause_of(RayError()) == "RayError"
