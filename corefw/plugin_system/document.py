"""The group table as documentation. ``python -m corefw.plugin_system.document`` prints it for ``docs/plugins.md``."""

from __future__ import annotations

from corefw.plugin_system.groups import GROUPS, Group, Process

__all__ = ["group_table"]


def group_table() -> str:
    """All groups as a Markdown table, those in use first."""
    lines = ["| group | loads in | default | serves | state | what | page |", "|---|---|---|---|---|---|---|"]
    return "\n".join(lines + [_line(group) for group in GROUPS])


def _line(group: Group) -> str:
    everywhere = set(group.processes) == set(Process)
    places = "every process" if everywhere else ", ".join(place.value for place in group.processes)
    state = "reserved" if group.reserved else "in use"
    return (
        f"| `{group.entry_point_group}` | {places} | {group.policy} | {group.cardinality} | {state} "
        f"| {group.description} | {_link(group.docs)} |"
    )


def _link(page: str) -> str:
    """Relative to ``docs/plugins.md``, which has what is said of groups without a page of their own."""
    own = page.removeprefix("docs/")
    return "" if own == "plugins.md" else f"[{own.rpartition('/')[2]}]({own})"


if __name__ == "__main__":
    print(group_table())
