"""The plugin manager: which plugins a process may use, loaded at most once each. An object, never a global."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from corefw.config.engine_config import ResolvedPlugin
from corefw.errors import ConfigError, PluginError, PluginUnavailable
from corefw.interfaces.selection import Selection
from corefw.plugin_system.allowlist import read_allowlist
from corefw.plugin_system.blame import told
from corefw.plugin_system.contributions import Contribution, Guarded
from corefw.plugin_system.discovery import CORE_DISTRIBUTION, FoundPlugin, find_plugins
from corefw.plugin_system.groups import Process, group_named
from corefw.plugin_system.inheritance import digest_of, handed_over, inherit
from corefw.plugin_system.isolation import contained
from corefw.plugin_system.loading import Outcome, load_plugin, resolve_class
from corefw.plugin_system.names import suggestion
from corefw.plugin_system.verdicts import State, Verdict, judge, log_left_out

if TYPE_CHECKING:
    from corefw.plugin_system.hooks import Hooks

__all__ = ["POLICIES", "LoadedPlugin", "PluginManager"]

POLICIES = ("strict", "normal", "warn")
_GENERAL = "general_plugins"

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that was loaded: ``value`` is its class (a hook module or function in ``general_plugins``)."""

    name: str
    distribution: str
    value: Any
    group: str = ""

    @property
    def builtin(self) -> bool:
        """Whether the core distribution ships it."""
        return self.distribution == CORE_DISTRIBUTION

    def create(self) -> Any:
        """An instance of the class, made without arguments.

        Raises:
            PluginUnavailable: the plugin says that it can't run here.
            PluginError: the constructor failed.
        """
        try:
            return self.value()
        except PluginUnavailable:
            raise
        except (Exception, SystemExit) as error:
            group = f" ({self.group})" if self.group else ""
            cause = f"can't be made: {told(error)}"
            raise PluginError(f"plugin {self.name!r}{group} of {self.distribution} {cause}") from error


class PluginManager:
    """Answers by group and name. Made by :meth:`discover` in a parent and :meth:`from_resolved` in its children.

    Loading is lazy, happens once per plugin, and in a fixed order: built-ins first, then by name and distribution. A
    plugin that failed keeps its error and tells it each time it is asked for.
    """

    def __init__(self, verdicts: Sequence[Verdict], *, source: str, policy: str) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"--plugin-policy {policy[:40]!r} is unknown; use one of {', '.join(POLICIES)}")
        self.verdicts = tuple(verdicts)
        self._source = source
        self._policy = policy
        self._allowed = {(v.plugin.group, v.plugin.name): v for v in verdicts if v.allowed}
        self._outcomes: dict[FoundPlugin, Outcome] = {}
        self._made_hooks: Hooks | None = None
        self._announced: set[str] = set()
        self._guards: list[Guarded[Any]] = []
        self._selections: list[Selection] = []
        # Entered around whatever loads a plugin or calls its hooks.
        self.watching: Callable[[FoundPlugin], AbstractContextManager[object]] = nullcontext

    @classmethod
    def discover(cls, allow: str | None = None, policy: str = "normal", lock: str | None = None) -> PluginManager:
        """Find the installed plugins and decide which may be loaded. Imports none of them.

        Args:
            allow: value of ``--plugins``; None leaves it to ``VLLM_PLUGINS``.
            policy: ``strict``, ``normal`` or ``warn``.
            lock: value of ``--plugin-lock``: file with the set that alone may run.

        Raises:
            ConfigError: the allowlist is malformed or names what isn't there (a warning under ``warn``), or the lock
                can't be read.
            PluginError: two plugins have one name, a named one is incompatible, or the set isn't the locked one.
        """
        allowlist = read_allowlist(allow)
        found = find_plugins()
        verdicts, problems = judge(found, allowlist)
        manager = cls(verdicts, source=allowlist.source, policy=policy)
        manager._complain(allowlist.complaints(found))
        if policy == "strict":
            problems = (*problems, *_incompatible(verdicts))
        if lock is not None:
            from corefw.plugin_system.lock import lock_problems

            problems = (*problems, *lock_problems(Path(lock), (v.plugin for v in verdicts if v.allowed)))
        if problems:
            raise PluginError("; ".join(problems))
        log_left_out(verdicts)
        return manager

    @classmethod
    def from_resolved(cls, resolved: Iterable[ResolvedPlugin], policy: str = "normal") -> PluginManager:
        """The set that the parent resolved, in a child process; nothing else is allowed.

        Raises:
            PluginError: a plugin of the set is missing here, or is another one.
        """
        verdicts = inherit(resolved, find_plugins())
        return cls(verdicts, source="the parent process", policy=policy)

    def resolved(self) -> tuple[ResolvedPlugin, ...]:
        """What children have to find again, in order."""
        return tuple(handed_over(v) for v in self._allowed.values())

    def digest(self) -> str:
        """One text for the resolved set, for ranks that have no parent: equal where groups, names, values,
        distributions and versions are, whatever the operator named.
        """
        return digest_of(self.resolved())

    def names(self, group: str) -> tuple[str, ...]:
        """Names of the plugins of a group that may be loaded, built-ins first; nothing is imported."""
        group = group_named(group).name
        return tuple(name for owner, name in self._allowed if owner == group)

    def get(self, group: str, name: str, *, setting: str | None = None) -> Any:
        """Load one plugin and return its class.

        Args:
            group: with or without the prefix ``corefw.``.
            name: the plugin's name.
            setting: the option by which it was asked for, for messages.

        Raises:
            PluginError: unknown, not allowed, or failed to load.
            PluginUnavailable: the plugin says that it can't run here.
        """
        verdict = self._find(group_named(group).name, name, setting)
        outcome = self._load(verdict)
        if outcome.state is State.LOADED:
            return outcome.value
        raise _error(verdict, outcome) from outcome.error

    def load_all(self, group: str) -> tuple[LoadedPlugin, ...]:
        """Load every allowed plugin of a group; those that are unavailable or failed by default are left out.

        Raises:
            PluginError: a built-in or a named plugin failed, or any did under the policy ``strict``.
        """
        group = group_named(group).name
        verdicts = [v for v in self._allowed.values() if v.plugin.group == group]
        outcomes = [(verdict, self._load(verdict)) for verdict in verdicts]
        for verdict, outcome in outcomes:
            self._stop_if_required(verdict, outcome)
        return tuple(
            LoadedPlugin(verdict.plugin.name, verdict.plugin.distribution, outcome.value, group)
            for verdict, outcome in outcomes
            if outcome.state is State.LOADED
        )

    def load_general(self, process: str) -> tuple[LoadedPlugin, ...]:
        """Load the general plugins in this process and tell their hooks. May be called again: it does nothing twice.

        Args:
            process: ``front_end``, ``engine_core``, ``worker`` or ``cli``.
        """
        role = _role(process)
        for plugin in self.load_all(_GENERAL):
            if plugin.name not in self._announced:
                self._announced.add(plugin.name)
                self._announce(self._allowed[_GENERAL, plugin.name], role)
        return self.load_all(_GENERAL)

    def collect(
        self, kind: type | tuple[type, ...], hook: Callable[P, R | None], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Contribution[R], ...]:
        """Call a hook of every general plugin that was loaded here and has it, in the plugins' order.

        A hook that raises, or returns something of another type, makes its plugin ``failed``: see ``load_general``.

        Args:
            kind: of which each answer has to be an instance.
            hook: the specification, of ``corefw.interfaces.hooks``.

        Returns:
            the answers that aren't None.

        Raises:
            PluginError: a hook of a named plugin failed, or of any under the policy ``strict``.
        """
        found = []
        for verdict in self._hook_modules():
            plugin = verdict.plugin
            answer = self._ask(verdict, hook, kind, *args, **kwargs)
            if answer is not None:
                found.append(Contribution(plugin.name, plugin.distribution, hook.__name__, answer))
        return tuple(found)

    def guard(self, contribution: Contribution[T]) -> Guarded[T]:
        """A contribution as the engine may call it while it works; the report tells when it was quarantined."""
        guarded = Guarded(contribution)
        self._guards.append(guarded)
        return guarded

    @property
    def quarantined(self) -> tuple[Guarded[Any], ...]:
        """The contributions that aren't called any more."""
        return tuple(guarded for guarded in self._guards if guarded.quarantined is not None)

    def record(self, selection: Selection) -> None:
        """Keep a choice, for the report."""
        self._selections.append(selection)

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The choices recorded so far."""
        return tuple(self._selections)

    def attempt(self, plugin: FoundPlugin, process: str) -> tuple[State, str]:
        """Load one plugin, whatever the list says of it, and tell its hooks of the process; what became of it."""
        verdict = Verdict(plugin=plugin, state=State.FOUND, reason="asked for")
        if self._load(verdict).state is State.LOADED and plugin.group == _GENERAL:
            self._announce(verdict, _role(process))
        outcome = self._outcomes[plugin]
        return outcome.state, outcome.reason

    def give_up(self, plugin: FoundPlugin, reason: str) -> None:
        """Go on without a plugin that another thread is still loading."""
        self._outcomes[plugin] = Outcome(State.UNAVAILABLE, reason)

    def found(self, group: str, name: str) -> FoundPlugin | None:
        """The plugin of that name, whether or not it may be loaded; None where nobody has one."""
        verdict = self._verdict_on(group, name)
        return None if verdict is None else verdict.plugin

    def outcome(self, plugin: FoundPlugin) -> Outcome | None:
        """What came of loading that plugin, None while nobody asked for it."""
        return self._outcomes.get(plugin)

    def _find(self, group: str, name: str, setting: str | None) -> Verdict:
        verdict = self._verdict_on(group, name)
        if verdict is not None and verdict.allowed:
            return verdict
        asked = f" asked for by {setting}" if setting else ""
        if verdict is not None:
            owner = verdict.plugin.full_name
            raise PluginError(f"{group}: {name!r}{asked} is {owner}, {verdict.state}: {verdict.reason}")
        raise PluginError(f"there is no plugin {name[:80]!r}{asked} in {group}; {suggestion(name, self.names(group))}")

    def _verdict_on(self, group: str, name: str) -> Verdict | None:
        """On the one that may be loaded, else on the first that was found."""
        same_name = (v for v in self.verdicts if (v.plugin.group, v.plugin.name) == (group, name))
        return self._allowed.get((group, name)) or next(same_name, None)

    def _load(self, verdict: Verdict) -> Outcome:
        plugin = verdict.plugin
        known = self._outcomes.get(plugin)
        if known is not None:
            return known
        finish = self._install_general if plugin.group == _GENERAL else resolve_class
        with self.watching(plugin):
            outcome = self._outcomes[plugin] = load_plugin(plugin, finish)
        if outcome.state is State.FAILED:
            self._log_failure(plugin, outcome)
        elif outcome.state is State.UNAVAILABLE:
            logger.info("plugin %s (%s) is unavailable: %s", plugin.full_name, plugin.group, outcome.reason)
        return outcome

    def _install_general(self, plugin: FoundPlugin, target: object) -> object:
        if target is None:
            raise PluginUnavailable("it says that it can't run here, without a reason (None)")
        if isinstance(target, FunctionType):
            returned = target()
            if returned is not None:
                raise PluginError(f"{plugin.value} returned {type(returned).__name__}; it has to return nothing")
        else:
            self._hooks.register(plugin.name, target)
        return target

    def _announce(self, verdict: Verdict, role: Process) -> None:
        if not isinstance(self._outcomes[verdict.plugin].value, FunctionType):
            from corefw.interfaces.hooks.process import corefw_loaded

            self._ask(verdict, corefw_loaded, type(None), role.value)

    @property
    def _hooks(self) -> Hooks:
        if self._made_hooks is None:
            from corefw.plugin_system.hooks import Hooks  # pluggy is imported where there is a hook module, only

            self._made_hooks = Hooks()
        return self._made_hooks

    def _hook_modules(self) -> list[Verdict]:
        """Those of the general plugins loaded so far that are hook modules, in order."""
        general = (v for v in self._allowed.values() if v.plugin.group == _GENERAL)
        outcomes = ((verdict, self._outcomes.get(verdict.plugin)) for verdict in general)
        return [
            verdict
            for verdict, outcome in outcomes
            if outcome is not None and outcome.state is State.LOADED and not isinstance(outcome.value, FunctionType)
        ]

    def _ask(
        self, verdict: Verdict, hook: Callable[..., Any], kind: type | tuple[type, ...], *args: Any, **kwargs: Any
    ) -> Any:
        plugin = verdict.plugin
        try:
            with self.watching(plugin), contained(plugin.full_name):
                answer = self._hooks.call(plugin.name, hook, args, kwargs)
            if answer is not None and not isinstance(answer, kind):
                raise TypeError(f"it returned {type(answer).__name__}, not {_kind_name(kind)}")
        except (Exception, SystemExit) as error:
            reason = f"hook {hook.__name__} raised {told(error)}"
            outcome = self._outcomes[plugin] = Outcome(State.FAILED, reason, error=error)
            self._log_failure(plugin, outcome)
            self._stop_if_required(verdict, outcome)
            return None
        return answer

    def _stop_if_required(self, verdict: Verdict, outcome: Outcome) -> None:
        required = verdict.named or verdict.plugin.builtin or self._policy == "strict"
        if outcome.state is State.FAILED and required:
            raise _error(verdict, outcome) from outcome.error

    def _complain(self, complaints: Sequence[str]) -> None:
        if complaints and self._policy != "warn":
            raise ConfigError("; ".join(complaints) + " (--plugin-policy warn makes this a warning)")
        for complaint in complaints:
            logger.warning("%s", complaint)

    @staticmethod
    def _log_failure(plugin: FoundPlugin, outcome: Outcome) -> None:
        logger.error(
            "plugin %s (%s) of %s %s failed to load: %s",
            plugin.name,
            plugin.group,
            plugin.distribution,
            plugin.version,
            outcome.reason,
            exc_info=outcome.error,
        )


def _kind_name(kind: type | tuple[type, ...]) -> str:
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))


def _role(process: str) -> Process:
    if process not in list(Process):
        raise PluginError(f"there is no process role {process[:80]!r}; {suggestion(process, Process)}")
    return Process(process)


def _incompatible(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    return tuple(
        f"{verdict.plugin.full_name} is incompatible: {verdict.reason}"
        for verdict in verdicts
        if verdict.state is State.INCOMPATIBLE and not verdict.named
    )


def _error(verdict: Verdict, outcome: Outcome) -> PluginError:
    plugin = verdict.plugin
    kind = PluginUnavailable if outcome.state is State.UNAVAILABLE else PluginError
    return kind(
        f"plugin {plugin.name!r} ({plugin.group}) of {plugin.distribution} {plugin.version} is "
        f"{outcome.state}: {outcome.reason}"
    )
