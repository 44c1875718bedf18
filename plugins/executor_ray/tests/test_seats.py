"""Who becomes which rank."""

from __future__ import annotations

from corefw_executor_ray.seats import Home, Seat, arrange


def _homes(nodes: str) -> list[Home]:
    return [Home(node, f"10.0.0.{ord(node)}") for node in nodes]


def test_ranks_of_a_node_are_neighbours_and_the_drivers_node_comes_first() -> None:
    seats = arrange(_homes("abcab"), driver_node="b")
    assert [(seat.actor, seat.local_rank, seat.num_local_ranks) for seat in seats] == [
        (1, 0, 2),
        (4, 1, 2),
        (0, 0, 2),
        (3, 1, 2),
        (2, 0, 1),
    ]


def test_without_a_rank_on_the_drivers_node_the_fullest_comes_first() -> None:
    assert [seat.actor for seat in arrange(_homes("abb"), driver_node="z")] == [1, 2, 0]


def test_the_order_doesnt_depend_on_the_order_in_which_ray_tells_nodes() -> None:
    assert [seat.actor for seat in arrange(_homes("ba"), "z")] == [1, 0]
    assert [seat.actor for seat in arrange(_homes("ab"), "z")] == [0, 1]


def test_ranks_of_a_node_see_all_of_its_devices_and_each_takes_its_own() -> None:
    homes = [
        Home("a", "h", 5, "BOARDS", ("6",)),
        Home("b", "i", 5, "BOARDS", ("0",)),
        Home("a", "h", 6, "BOARDS", ("3",)),
    ]
    assert arrange(homes, "a") == [
        Seat(0, 0, 2, {"BOARDS": "6,3"}),
        Seat(2, 1, 2, {"BOARDS": "6,3"}),
        Seat(1, 0, 1, {"BOARDS": "0"}),
    ]


def test_where_devices_have_no_numbers_nothing_is_hidden() -> None:
    assert arrange(_homes("a"), "a") == [Seat(0, 0, 1, {})]
