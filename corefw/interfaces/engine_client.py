"""The engine as endpoints and protocol servers use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from corefw.frontend.output_processor import GenerationUpdate
    from corefw.messages.outputs import SchedulerStats
    from corefw.messages.sampling import SamplingParams

__all__ = ["EngineClient", "Prompt"]

# A text, token ids, or a chat: objects with role and content.
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class EngineClient(Protocol):
    """Generates text, and no more than that. Used on the server's event loop."""

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names under which the model is served; the first is the one told to clients."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""

    @property
    def stats(self) -> SchedulerStats:
        """The engine's figures after its newest step."""

    def default_params(self, **values: Any) -> SamplingParams:
        """The model's own sampling defaults; ``values`` replace them.

        Raises:
            RequestError: a value is out of range.
        """

    async def call(self, name: str, *args: Any) -> Any:
        """Call ``plugin.method``, a function that a plugin offers in the engine (``corefw_rpc_handlers``).

        Raises:
            RequestError: there is no such function, it failed, or the arguments aren't plain data.
            EngineError: the engine failed.
        """

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        route: str = "",
        request_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[GenerationUpdate, None]:
        """Updates of the outputs of one prompt as they come; closing the generator aborts what still runs.

        It passes everything that a request of the core's routes passes: the admission, plugins that edit, validate and
        transform, figures, ``--request-timeout``, and the end of the server's drain.

        Args:
            prompt: a text, token ids, or a chat.
            params: None takes ``default_params()``.
            route: what the way in is called, for figures and validators.
            request_id: the client's name for it.
            tags: for stat loggers; bounds as in ``FinishedRequest``.
            priority, cache_salt: for the core.
            extensions: data for plugins in the engine, by plugin.

        Raises (the first step of the generator, or a later one):
            RequestError: the request is wrong, or a validator refuses it.
            CapacityError: there is no room now.
            EngineError, EngineDeadError: the engine failed, or the server stops.
        """
