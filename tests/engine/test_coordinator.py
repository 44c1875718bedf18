from __future__ import annotations

from corefw.engine.coordinator import Coordinator
from corefw.messages.control import WaveOrder, WaveReport


def begun(wave: int) -> WaveReport:
    return WaveReport(wave=wave, num_steps=0, has_work=True)


def after_a_round(wave: int, has_work: bool, num_steps: int = 16) -> WaveReport:
    return WaveReport(wave=wave, num_steps=num_steps, has_work=has_work)


def test_who_begins_takes_the_others_along() -> None:
    coordinator = Coordinator(3)
    assert coordinator.take(1, begun(0)) == [(0, WaveOrder(wave=0)), (2, WaveOrder(wave=0))]
    assert coordinator.is_running


def test_two_that_begin_at_once_begin_one_wave() -> None:
    coordinator = Coordinator(2)
    coordinator.take(1, begun(0))
    assert coordinator.take(0, begun(0)) == []


def test_a_wave_goes_on_while_anybody_has_work() -> None:
    coordinator = Coordinator(2)
    coordinator.take(0, begun(0))
    assert coordinator.take(0, after_a_round(0, has_work=False)) == []
    order = WaveOrder(wave=0, goes_on=True)
    assert coordinator.take(1, after_a_round(0, has_work=True)) == [(0, order), (1, order)]


def test_a_wave_ends_for_all_when_nobody_has() -> None:
    coordinator = Coordinator(2)
    coordinator.take(0, begun(0))
    coordinator.take(0, after_a_round(0, has_work=False))
    order = WaveOrder(wave=0, goes_on=False)
    assert coordinator.take(1, after_a_round(0, has_work=False)) == [(0, order), (1, order)]
    assert (coordinator.wave, coordinator.is_running) == (1, False)


def test_the_next_wave_begins_after_the_end_of_the_one_before() -> None:
    coordinator = Coordinator(2)
    coordinator.take(0, begun(0))
    for engine in (0, 1):
        coordinator.take(engine, after_a_round(0, has_work=False))
    assert coordinator.take(0, begun(0)) == []  # it was on its way when the wave ended
    assert coordinator.take(1, begun(1)) == [(0, WaveOrder(wave=1))]
