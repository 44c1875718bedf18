"""IOProcessor: takes a request in a form of its own, makes prompts of it, and shapes the answer from their outputs."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.frontend.output_processor import TokenLogprob
    from corefw.frontend.renderer import Renderer
    from corefw.interfaces.hooks.media import MediaModel
    from corefw.messages.request import PlainDict
    from corefw.messages.sampling import SamplingParams

__all__ = ["IOChat", "IOContext", "IOOutput", "IOProcessor", "IOPrompt", "IORequest", "IOSetup"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True, slots=True)
class IOSetup:
    """What a processor is made with.

    Attributes:
        config: as resolved; the plugin's own settings are in ``config.plugin_settings``.
        renderer: from texts and chats to token ids; any thread may use it.
        media_model: what the model takes besides text (``corefw_media_model``); None for nothing.
    """

    config: EngineConfig
    renderer: Renderer
    media_model: MediaModel | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IOChat:
    """A chat that has parts other than text.

    Attributes:
        messages: as the client sent them; a part's position is its path, ``messages[0].content[1]``.
        template_kwargs: further variables of the template.
        add_generation_prompt: end with the beginning of an assistant's message.
        continue_final_message: end with the last message's text, which the answer continues.
    """

    messages: Sequence[Mapping[str, Any]]
    template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IORequest:
    """A request as it came.

    Attributes:
        params: how tokens are chosen, unless the processor says otherwise.
        task: what is asked for: ``generate``.
        data: the field ``data``, plain and unchecked; None for a chat.
        chat: the chat; None where there are data.
        cache_salt: requests of other salts must not profit from this one's data.
    """

    params: SamplingParams
    task: str = "generate"
    data: Any = None
    chat: IOChat | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IOPrompt:
    """A prompt: either a text, or token ids.

    Attributes:
        text: tokenised as the core does it.
        token_ids: with any id of the vocabulary where an embedding stands.
        embeds: arrays of floats [positions, width], by position of the first one, which take the place of those ids.
            Only with ``token_ids``, and where the engine takes embeddings (``--enable-prompt-embeds``).
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    embeds: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class IOOutput:
    """One output of a prompt, complete.

    Attributes:
        text, token_ids: what was generated.
        finish_reason, stop_reason: why it ended.
        logprobs: one entry a token, where the parameters ask for them.
        extensions: by plugin, what its observers said of the output.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    extensions: PlainDict = field(default_factory=dict)


class IOContext:
    """One request's way through the processor; derive from it to keep more than this.

    Attributes:
        request: as it came.
        params: how tokens are chosen; ``parse`` and ``pre_process`` may put others here, with the same n.
    """

    def __init__(self, request: IORequest) -> None:
        self.request = request
        self.params = request.params
        self.running: set[asyncio.Future[Any]] = set()

    async def in_thread(self, call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run ``call`` in a thread. When the request ends meanwhile, ``close`` waits for the call's end."""
        bound = functools.partial(contextvars.copy_context().run, functools.partial(call, *args, **kwargs))
        future = asyncio.get_running_loop().run_in_executor(None, bound)
        self.running.add(future)
        future.add_done_callback(self._ended)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Give back what the request holds. Called exactly once, however the request ends: answered, refused, failed,
        aborted, or its client gone. It must not wait."""

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self.running.discard(future)
        if not future.cancelled():
            future.exception()  # whoever waited for it may have gone


class IOProcessor(ABC):
    """Chosen by ``--io-processor-plugin``, else by ``io_processor_plugin`` in the model's configuration, else none
    (group ``corefw.io_processor_plugins``).

    One object a front end. A request goes through ``begin``, ``parse``, ``pre_process``, the engine, and, where the
    client sent ``data``, ``post_process``, all with one context, which is then closed. Requests overlap: all that is
    of one lies in its context. The methods may be called from any thread; where the server runs, the ``_async`` ones
    are called on the event loop, and by default they run the others in a thread.

    **Errors.** ``RequestError`` and ``CapacityError`` are answers to the client, and so is any ``ValueError`` in
    ``parse`` (400). A ``param`` is a path in ``data``, or in the request where a chat came. Anything else is the
    processor's failure: that request ends with a 500 that names it.

    Attributes:
        name: as ``--io-processor-plugin`` takes it.
        tasks: what it can do.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = 1
    tasks: ClassVar[frozenset[str]] = frozenset({"generate"})

    def __init__(self, setup: IOSetup) -> None:
        """Called once, when the configuration is complete.

        Raises:
            ConfigError: it can't work so; stops the start.
        """
        self.setup = setup

    @property
    def modalities(self) -> frozenset[str]:
        """What parts of a chat's messages it takes besides text: ``image``, ``audio``, ``video``, ``file``. A chat with
        such a part comes as ``IORequest.chat``; one without doesn't come here."""
        return frozenset()

    def begin(self, request: IORequest) -> IOContext:
        """The context of a request, not yet looked at."""
        return IOContext(request)

    @abstractmethod
    def parse(self, context: IOContext) -> None:
        """Check ``context.request``, and keep in the context what was understood. Called on the event loop, so it must
        not wait."""

    @abstractmethod
    def pre_process(self, context: IOContext) -> IOPrompt | Sequence[IOPrompt]:
        """The prompts. A chat makes one."""

    def post_process(self, context: IOContext, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """The answer to ``data``.

        Args:
            context: of the request.
            outputs: by prompt, each n by index.

        Returns:
            plain data; what clients get as ``data``.
        """
        del context
        return [[output.text for output in each] for each in outputs]

    async def pre_process_async(self, context: IOContext) -> IOPrompt | Sequence[IOPrompt]:
        """``pre_process`` for the server; override it to wait for something without a thread."""
        return await context.in_thread(self.pre_process, context)

    async def post_process_async(self, context: IOContext, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """``post_process`` for the server."""
        return await context.in_thread(self.post_process, context, outputs)
