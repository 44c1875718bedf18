"""Writes a line of JSON for each step that begins, preempts or ends something, to a file that a setting names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from corefw.interfaces.hooks.configuration import PluginSettings
from corefw.interfaces.hooks.scheduling import ObservedStep, SchedulerObserver
from corefw.sdk.plugins import hookimpl


@dataclass
class StepLog:
    """Where steps are written to."""

    path: str | None = None
    every_step: bool = False


_settings = StepLog()


@hookimpl
def corefw_config_section() -> type[StepLog]:
    return StepLog


@hookimpl
def corefw_configured(settings: PluginSettings) -> None:
    global _settings
    _settings = settings.of(StepLog)


@hookimpl
def corefw_scheduler_observer() -> SchedulerObserver | None:
    return None if _settings.path is None else _Writer(Path(_settings.path), _settings.every_step)


class _Writer(SchedulerObserver):
    def __init__(self, path: Path, every_step: bool) -> None:
        self._path = path
        self._every_step = every_step

    def scheduled(self, step: ObservedStep) -> None:
        if not (self._every_step or step.new_request_ids or step.preempted_request_ids or step.finished_request_ids):
            return
        line = {
            "step": step.step,
            "begin": {name: step.num_scheduled_tokens[name] for name in step.new_request_ids},
            "preempted": list(step.preempted_request_ids),
            "finished": list(step.finished_request_ids),
            "running": step.num_running,
            "waiting": step.num_waiting,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
