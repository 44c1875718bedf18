from __future__ import annotations

from collections.abc import Callable

import pytest

from corefw.config.device_ids import DeviceIds
from corefw.errors import ConfigError

UUIDS = ("GPU-1a2b", "GPU-1a99", "GPU-77", "MIG-5")
Reader = Callable[..., DeviceIds]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Reader:
    def read(value: str | None, num_physical: int = 8, uuids: tuple[str, ...] = ()) -> DeviceIds:
        monkeypatch.delenv("BOARDS", raising=False)
        if value is not None:
            monkeypatch.setenv("BOARDS", value)
        return DeviceIds.from_environment("BOARDS", num_physical, uuids)

    return read


def test_without_the_variable_all_three_numbers_are_the_same(read: Reader) -> None:
    ids = read(None, 3)
    assert [(ids.physical_of(i), ids.visible_of(i), ids.logical_of(i)) for i in range(3)] == [
        (i, i, i) for i in range(3)
    ]


def test_a_rank_computes_on_the_number_that_its_own_process_knows(read: Reader) -> None:
    ids = read("4, 5,2")
    assert [ids.physical_of(logical) for logical in range(3)] == [4, 5, 2]
    assert [ids.visible_of(logical) for logical in range(3)] == [0, 1, 2]
    assert ids.visible_of_physical(2) == 2


def test_assigned_devices_are_counted_from_zero_in_their_own_order(read: Reader) -> None:
    ids = read("4,5,6,7").assign([7, 5])
    assert [ids.physical_of(logical) for logical in range(2)] == [7, 5]
    assert [ids.visible_of(logical) for logical in range(2)] == [3, 1]
    assert [ids.logical_of(physical) for physical in (7, 5)] == [0, 1]


def test_assigning_the_same_again_changes_nothing_and_other_devices_are_refused(read: Reader) -> None:
    ids = read("4,5").assign([5])
    assert ids.assign([5]) == ids
    with pytest.raises(ConfigError, match="4 are assigned to a process that has devices 5 already"):
        ids.assign([4])


@pytest.mark.parametrize("wanted", [[], [4, 4]])
def test_nothing_and_a_device_twice_cant_be_assigned(read: Reader, wanted: list[int]) -> None:
    with pytest.raises(ConfigError, match="name each once, and at least one"):
        read("4,5").assign(wanted)


def test_a_hidden_device_cant_be_assigned_or_converted(read: Reader) -> None:
    ids = read("4,5")
    with pytest.raises(ConfigError, match=r"physical device 0 is hidden from this process: it sees 4, 5 \(BOARDS\)"):
        ids.assign([0])
    with pytest.raises(ConfigError, match="physical device 3 isn't among the assigned 4, 5"):
        ids.logical_of(3)


@pytest.mark.parametrize("logical", [2, -1])
def test_a_rank_without_a_device_is_refused_with_the_remedy(read: Reader, logical: int) -> None:
    with pytest.raises(ConfigError, match=f"local rank {logical} has no device: 2 are assigned.*let BOARDS name more"):
        read("4,5").physical_of(logical)


def test_a_child_sees_its_devices_alone_and_counts_them_from_zero(read: Reader) -> None:
    parent = read("7,4,5,6")
    given = parent.visibility([1, 3])
    assert given == {"BOARDS": "4,6"}
    child = read(given["BOARDS"])
    assert [child.physical_of(logical) for logical in range(2)] == [4, 6]
    assert [child.visible_of(logical) for logical in range(2)] == [0, 1]


def test_uuids_name_devices_also_by_a_beginning_and_go_on_to_children(read: Reader) -> None:
    ids = read("GPU-77,GPU-1a2,1,MIG-5", 4, UUIDS)
    assert ids.visible == (2, 0, 1, 3)
    assert ids.visibility([1, 2]) == {"BOARDS": "GPU-1a2,1"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "it is set but empty, which hides every device"),
        (" ", "it is set but empty"),
        ("0,,1", "'' is no device"),
        ("0,", "'' is no device"),
        ("0,4", "there is no device 4: the machine has 4"),
        ("-1", "'-1' hides it and every device after it"),
        ("0,-1,1", "'-1' hides it"),
        ("1,0,1", "it names device 1 twice"),
        ("GPU-77,2", "it names device 2 twice"),
        ("GPU-1a", "'GPU-1a' is the beginning of more than one device's UUID"),
        ("GPU-9", r"'GPU-9' is no device: use its number or a UUID \(GPU-1a2b, "),
        ("0 1", "'0 1' is no device"),
        ("all", "'all' is no device"),
        ("1.5", "'1.5' is no device"),
        ("\u0661", "is no device"),
    ],
)
def test_a_variable_that_a_driver_would_half_obey_is_refused(read: Reader, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        read(value, 4, UUIDS)
    assert "unset it to use all 4 devices, or name them as in BOARDS=0,1" in str(error.value)


def test_a_uuid_is_refused_where_uuids_arent_known(read: Reader) -> None:
    with pytest.raises(ConfigError, match="use its number or nothing else, as the UUIDs aren't known here"):
        read("GPU-1", 4)


def test_an_error_doesnt_repeat_an_endless_value(read: Reader) -> None:
    with pytest.raises(ConfigError) as error:
        read("0," * 5000)
    assert len(str(error.value)) < 400
