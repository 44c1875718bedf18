"""The order of ranks over the nodes that the cluster gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Home", "Seat", "arrange"]


@dataclass(frozen=True, slots=True)
class Home:
    """Where Ray started an actor.

    Attributes:
        node_id: Ray's.
        host: address by which other nodes reach it.
        pid: of its process, on that node.
        variable: by which the platform's driver hides devices; None where devices aren't numbered.
        devices: names of those that Ray gave it, as the variable calls them.
    """

    node_id: str
    host: str
    pid: int = 0
    variable: str | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seat:
    """What one rank gets.

    Attributes:
        actor: number of the actor that becomes it.
        local_rank: place among the ranks of its node.
        num_local_ranks: how many those are.
        visibility: for all of these the same, so that they can reach each other's devices; each takes its own one.
    """

    actor: int
    local_rank: int
    num_local_ranks: int
    visibility: dict[str, str]


def arrange(homes: Sequence[Home], driver_node: str) -> list[Seat]:
    """By rank: a node's ranks are neighbours, and the engine core's own node comes first.

    Neighbours in rank talk most: the tensor-parallel axis varies fastest.
    """
    nodes: dict[str, list[int]] = {}
    for actor, home in enumerate(homes):
        nodes.setdefault(home.node_id, []).append(actor)
    seats = []
    for node in sorted(nodes, key=lambda node: (node != driver_node, -len(nodes[node]), node)):
        members = nodes[node]
        names = ",".join(name for actor in members for name in homes[actor].devices)
        variable = homes[members[0]].variable
        visibility = {} if variable is None else {variable: names}
        seats += [Seat(actor, place, len(members), visibility) for place, actor in enumerate(members)]
    return seats
