"""What would be chosen for a model and settings, and why nothing else. Reads headers, never weights. Torch-free."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corefw import env
from corefw.engine.io_processor_choice import choose_io_processor
from corefw.engine.resolver import resolve_config
from corefw.errors import EngineStartError
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.groups import GROUPS, GROUPS_BY_NAME, Cardinality, Process, group_named
from corefw.plugin_system.selection import by_name
from corefw.plugin_system.worker_question import WorkerAnswer, WorkerQuestion

if TYPE_CHECKING:
    from corefw.config.args import UserArgs
    from corefw.config.device_description import DeviceDescription
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["Explanation", "explain"]

# Torch alone takes seconds to import, and a machine may be slow.
_WORKER_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """What came out.

    Attributes:
        config: as a server would have it.
        selections: every choice among plugins.
        decisions: (what, chosen, why) of everything else.
        problem: why an engine wouldn't start so, None where nothing speaks against it.
    """

    config: EngineConfig
    selections: tuple[Selection, ...]
    decisions: tuple[tuple[str, str, str], ...]
    problem: str | None


def explain(args: UserArgs, plugins: PluginManager, described: DeviceDescription | None = None) -> Explanation:
    """Choose as a start would, for this machine or for a described device.

    Raises:
        ConfigError, PluginError: the configuration can't be resolved; with every reason.
    """
    plugins.load_general(Process.CLI)
    config = resolve_config(args, plugins, described)
    worker = _ask_worker(config, described)
    selections = [
        *plugins.selections,
        *_named(config, plugins),
        choose_io_processor(config, plugins)[1],
        *(_selection(told.what, told.chosen, told.reason, told.rejected) for told in worker.selections),
        *_together(plugins),
    ]
    chosen = {selection.what for selection in selections}
    return Explanation(
        config=config,
        selections=tuple(_with_left_out(selections, plugins)),
        decisions=tuple(decision for decision in config.decisions if decision[0] not in chosen),
        problem=worker.problem,
    )


def _named(config: EngineConfig, plugins: PluginManager) -> Iterator[Selection]:
    """What the configuration names, each looked up so that a wrong name is told here."""
    settings = [
        ("core_launchers", "--data-parallel-backend", config.parallel.core_launcher),
        ("executors", "--distributed-executor-backend", config.parallel.executor),
        ("schedulers", "--scheduler", config.scheduler.scheduler),
        ("scheduler_strategies", "--scheduling-policy", config.scheduler.scheduling_policy),
        ("kv_connectors", "--kv-connector", config.kv_transfer.kv_connector),
        *(("logits_processors", "--logits-processors", name) for name in config.model.logits_processors),
    ]
    for group, setting, name in settings:
        if name is None:
            continue
        if ":" not in name:  # else an import path
            plugins.get(group, name, setting=setting)
        yield by_name(group_named(group).what, name, plugins.names(group), setting)


def _together(plugins: PluginManager) -> Iterator[Selection]:
    """Groups of which every allowed plugin serves."""
    for group in GROUPS:
        if group.cardinality is Cardinality.ALL and not group.reserved:
            names = ", ".join(plugins.names(group.name)) or "none"
            yield Selection(group.name, names, "all that may be loaded serve together")


def _with_left_out(selections: Iterable[Selection], plugins: PluginManager) -> Iterator[Selection]:
    """Those that weren't asked, because they may not be loaded, are candidates as well."""
    left_out: dict[str, list[Rejected]] = {}
    for verdict in plugins.verdicts:
        group = GROUPS_BY_NAME.get(verdict.plugin.group)
        if group is not None and not verdict.allowed:
            rejected = Rejected(verdict.plugin.full_name, f"{verdict.state}: {verdict.reason}")
            left_out.setdefault(group.what, []).append(rejected)
            left_out.setdefault(group.name, []).append(rejected)
    for selection in selections:
        yield replace(selection, rejected=(*selection.rejected, *left_out.get(selection.what, ())))


def _selection(what: str, chosen: str, reason: str, rejected: dict[str, str]) -> Selection:
    return Selection(what, chosen, reason, tuple(Rejected(name, why) for name, why in rejected.items()))


def _ask_worker(config: EngineConfig, described: DeviceDescription | None) -> WorkerAnswer:
    """In a process of its own: attention and ops are chosen by code that imports torch."""
    question = WorkerQuestion(config=config, described=described, search_path=list(sys.path))
    with tempfile.TemporaryDirectory(prefix="corefw-explain-") as folder:
        file = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "corefw.models.explain", str(file)],
                input=msgspec.msgpack.encode(question),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=env.child_environment(),
                timeout=_WORKER_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineStartError(f"choosing attention and ops took longer than {_WORKER_LIMIT_S:g} s") from None
        if done.returncode or not file.is_file():
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            raise EngineStartError(f"choosing attention and ops failed: {last[:500]}")
        return msgspec.json.decode(file.read_bytes(), type=WorkerAnswer)
