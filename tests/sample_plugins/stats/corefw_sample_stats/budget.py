"""A hook module: a stat logger that needs the configuration. It warns of outputs that fill the context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corefw.interfaces.stat_logger import FinishedRequest, StatLogger
from corefw.sdk.plugins import get_logger, hookimpl

if TYPE_CHECKING:
    from corefw.sdk.config import EngineConfig

logger = get_logger(__name__)


class Budget(StatLogger):
    """Warns."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def record_finished(self, request: FinishedRequest) -> None:
        """One line a long output."""
        for sequence in request.sequences:
            if sequence.num_generation_tokens > self._max_tokens // 100:
                logger.warning("request %s made %d tokens", request.request_id, sequence.num_generation_tokens)


@hookimpl
def corefw_stat_logger(config: EngineConfig) -> StatLogger:
    """The logger, with the context's length."""
    return Budget(config.model_info.max_position)
