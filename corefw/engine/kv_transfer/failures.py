"""What becomes of a request whose KV could not be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corefw.interfaces.hooks import kv as hooks
from corefw.interfaces.hooks.kv import LoadFailurePolicy
from corefw.plugin_system.contributions import Guarded

if TYPE_CHECKING:
    from corefw.interfaces.kv_connector import KVRequest
    from corefw.plugin_system.manager import PluginManager

__all__ = ["FailureRule"]

_ANSWERS = ("recompute", "fail")


class FailureRule:
    """Plugins are asked first, in order; then the operator's setting holds.

    Args:
        setting: ``--kv-load-failure-policy``.
        policies: of plugins.
    """

    def __init__(self, setting: str, policies: Sequence[Guarded[LoadFailurePolicy]] = ()) -> None:
        self._setting = setting
        self._policies = tuple(policies)

    @classmethod
    def collect(cls, setting: str, plugins: PluginManager) -> FailureRule:
        """The setting, and what plugins contribute."""
        found = plugins.collect(LoadFailurePolicy, hooks.corefw_kv_load_failure_policy)
        return cls(setting, [plugins.guard(policy) for policy in found])

    def recomputes(self, request: KVRequest, num_lost_tokens: int) -> bool:
        """Whether the request is computed instead; it fails otherwise."""
        for policy in self._policies:
            answer = policy.run(_ask, policy.value, request, num_lost_tokens)
            if answer is not None:
                return answer == "recompute"
        return self._setting == "recompute"


def _ask(policy: LoadFailurePolicy, request: KVRequest, num_lost_tokens: int) -> str | None:
    answer = policy.decide(request, num_lost_tokens)
    if answer is not None and answer not in _ANSWERS:
        raise ValueError(f"decide returned {answer!r}; it takes one of {', '.join(_ANSWERS)}, or None")
    return answer
