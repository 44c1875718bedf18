"""Choosing one candidate: ask in order, take the first that can, keep every reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from corefw.errors import ConfigError, CorefwError, PluginError, PluginUnavailable
from corefw.interfaces.selection import Rejected, Selection
from corefw.plugin_system.blame import told
from corefw.plugin_system.names import suggestion

__all__ = ["Candidate", "by_name", "select"]

Candidate = tuple[str, Callable[[], str | None]]


def select(what: str, candidates: Iterable[Candidate], *, named: str | None = None) -> Selection:
    """Choose one of several plugins, once, at start.

    Args:
        what: the thing chosen (``platform``, ``attention backend`` …).
        candidates: (name, question) in order of preference; a question answers None for yes, else why not.
        named: the one the user asked for; nobody else is taken then.

    Raises:
        ConfigError: nobody can, or the named one can't or isn't there; the message has every reason.
        PluginError: a candidate failed while it was asked; that is never taken for a no.
    """
    listed = tuple(candidates)
    if named is not None:
        return _named(what, listed, named)
    rejected: list[Rejected] = []
    for index, (name, question) in enumerate(listed):
        reason = _ask(what, name, question)
        if reason is None:
            later = [Rejected(other, f"not asked: {name} comes first") for other, _ in listed[index + 1 :]]
            why = "the first that can" if rejected or later else "the only one"
            return Selection(what, name, why, (*rejected, *later))
        rejected.append(Rejected(name, reason))
    raise ConfigError(_nobody(what, rejected))


def by_name(what: str, name: str, known: Iterable[str], setting: str) -> Selection:
    """The record of a choice that a setting makes alone (its default, too)."""
    rejected = tuple(Rejected(other, f"not asked: {setting} is {name}") for other in known if other != name)
    return Selection(what, name, f"the value of {setting}", rejected)


def _named(what: str, listed: Sequence[Candidate], named: str) -> Selection:
    questions = dict(listed)
    if named not in questions:
        raise ConfigError(f"there is no {what} {named[:80]!r}; {suggestion(named, questions)}")
    reason = _ask(what, named, questions[named])
    if reason is not None:
        others = ", ".join(name for name in questions if name != named) or "none"
        raise ConfigError(f"{what} {named!r} was asked for, but can't be used: {reason} (others: {others})")
    rejected = tuple(Rejected(name, f"not asked: {named} was asked for") for name in questions if name != named)
    return Selection(what, named, "asked for by name", rejected)


def _ask(what: str, name: str, question: Callable[[], str | None]) -> str | None:
    try:
        return question()
    except PluginUnavailable as error:
        return str(error) or "unavailable"
    except CorefwError:
        raise
    except Exception as error:
        raise PluginError(f"{what} {name!r} failed while it was asked: {told(error)}") from error


def _nobody(what: str, rejected: Sequence[Rejected]) -> str:
    if not rejected:
        return f"no {what} is installed or allowed; see `corefw plugins list`"
    reasons = "; ".join(f"not {r.name}: {r.reason}" for r in rejected)
    return f"no {what} can be used: {reasons}"
