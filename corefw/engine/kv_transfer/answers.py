"""What a connector's scheduler half answers, checked: it is a plugin's, and the engine counts on it."""

from __future__ import annotations

from collections.abc import Mapping

from corefw.interfaces.kv_connector import FinishedTransfer, KVRequest, Matched, SchedulerConnector
from corefw.messages.outputs import FinishReason
from corefw.messages.plain import plain_problem
from corefw.messages.request import PlainDict
from corefw.messages.scheduling import SchedulerOutput
from corefw.observability.logging import get_logger

__all__ = ["ask_end", "ask_match", "ask_metadata"]

_log = get_logger(__name__)


def ask_match(connector: SchedulerConnector, request: KVRequest, num_local_tokens: int) -> Matched:
    """``matched_tokens``.

    Raises:
        TypeError, ValueError: it answered something else than a number of tokens.
    """
    matched: object = connector.matched_tokens(request, num_local_tokens)
    if not isinstance(matched, Matched):
        raise TypeError(f"matched_tokens returned {type(matched).__name__}; it takes Matched")
    if matched.num_tokens is not None and (type(matched.num_tokens) is not int or matched.num_tokens < 0):
        raise ValueError(f"matched_tokens returned {matched.num_tokens!r} tokens; it takes 0 or more, or None")
    return matched


def ask_metadata(connector: SchedulerConnector, scheduled: SchedulerOutput) -> PlainDict:
    """``build_metadata``.

    Raises:
        TypeError: it answered something else than a dict.
    """
    metadata: object = connector.build_metadata(scheduled)
    if not isinstance(metadata, dict):
        raise TypeError(f"build_metadata returned {type(metadata).__name__}; it takes a dict")
    return metadata


def ask_end(connector: SchedulerConnector, request: KVRequest, reason: FinishReason) -> FinishedTransfer:
    """``request_finished``. Parameters that can't be sent are left out; blocks that are still read stay taken.

    Raises:
        TypeError: it answered something else.
    """
    finished: object = connector.request_finished(request, reason)
    if not isinstance(finished, FinishedTransfer):
        raise TypeError(f"request_finished returned {type(finished).__name__}; it takes FinishedTransfer")
    if finished.params is None:
        return finished
    problem = plain_problem(finished.params) if isinstance(finished.params, Mapping) else "is no dict"
    if problem is None:
        return finished
    name = type(connector).__name__
    _log.error("KV connector %s: what it says of request %s %s; it is left out", name, request.request_id, problem)
    return finished._replace(params=None)
