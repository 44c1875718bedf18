"""What there is and what became of it, as plain values and as text. Torch-free, and imports no plugin by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corefw.interfaces.selection import Selection
from corefw.plugin_system.blame import one_line
from corefw.plugin_system.groups import GROUPS_BY_NAME
from corefw.plugin_system.inventory import take_inventory
from corefw.plugin_system.verdicts import State, Verdict

if TYPE_CHECKING:
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Report", "Row", "explain", "format_rows", "report", "rows_of", "survey"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One plugin in a report."""

    group: str
    name: str
    distribution: str
    version: str
    value: str
    state: State
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Every plugin found, and what would stop a start with these settings."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def survey(allow: str | None = None) -> Report:
    """What ``corefw plugins list`` shows: states from metadata alone, problems listed instead of raised.

    Args:
        allow: value of ``--plugins``; None leaves it to ``VLLM_PLUGINS``.

    Raises:
        ConfigError: the allowlist is malformed.
    """
    found = take_inventory(allow)
    return Report(rows=rows_of(found.verdicts), problems=found.problems)


def rows_of(verdicts: Iterable[Verdict]) -> tuple[Row, ...]:
    """Verdicts as rows."""
    return tuple(_row(verdict, verdict.state, verdict.reason) for verdict in verdicts)


def report(manager: PluginManager) -> tuple[Row, ...]:
    """What became of each plugin in this process: loading, then the recorded choices, decide the state."""
    return tuple(_row(verdict, *_fate(manager, verdict)) for verdict in manager.verdicts)


def explain(selections: Iterable[Selection]) -> str:
    """Each choice with its reason, and under it why every other candidate wasn't taken."""
    lines: list[str] = []
    for selection in selections:
        lines.append(f"{selection.what}: {selection.chosen} ({selection.reason})")
        lines += [f"  not {rejected.name}: {rejected.reason}" for rejected in selection.rejected]
    return "\n".join(lines)


def format_rows(rows: Sequence[Row]) -> str:
    """Rows as aligned columns under a heading."""
    table: list[tuple[str, ...]] = [("GROUP", "NAME", "DISTRIBUTION", "VERSION", "STATE", "REASON")]
    cells = ((r.group, r.name, r.distribution, r.version, r.state.value, r.reason) for r in rows)
    table += [tuple(map(one_line, line)) for line in cells]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    aligned = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)
    return "\n".join(line.rstrip() for line in aligned)


def _row(verdict: Verdict, state: State, reason: str) -> Row:
    plugin = verdict.plugin
    return Row(
        group=plugin.group,
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        value=plugin.value,
        state=state,
        reason=reason,
    )


def _fate(manager: PluginManager, verdict: Verdict) -> tuple[State, str]:
    if not verdict.allowed:
        return verdict.state, verdict.reason
    outcome = manager.outcome(verdict.plugin)
    if outcome is not None and outcome.state is not State.LOADED:
        return outcome.state, outcome.reason
    chosen = _choice(manager.selections, verdict)
    if chosen is not None:
        return chosen
    return (verdict.state, verdict.reason) if outcome is None else (outcome.state, outcome.reason)


def _choice(selections: Sequence[Selection], verdict: Verdict) -> tuple[State, str] | None:
    """Active when any choice of its group took it, unused when one passed it over, else None."""
    what = GROUPS_BY_NAME[verdict.plugin.group].what
    name = verdict.plugin.name
    unused: tuple[State, str] | None = None
    for selection in selections:
        if selection.what != what and not selection.what.startswith(f"{what} "):
            continue
        if selection.chosen == name:
            return State.ACTIVE, selection.reason
        for rejected in selection.rejected:
            if rejected.name == name:
                unused = State.UNUSED, rejected.reason
    return unused
