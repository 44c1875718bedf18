"""The IO processor: which one, and a request's way through it, from what the client sent to the answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from corefw.engine.io_processor_choice import IO_PROCESSORS, choose_io_processor
from corefw.errors import CapacityError, ConfigError, EngineError, RequestError
from corefw.frontend.prompt_embeds import PromptEmbeds
from corefw.interfaces.hooks.media import MediaModel, corefw_media_model
from corefw.interfaces.io_processor import IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, IOSetup
from corefw.messages.plain import plain_problem
from corefw.messages.sampling import SamplingParams
from corefw.plugin_system.starting import starting

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.frontend.renderer import Renderer
    from corefw.frontend.results import CompletionOutput
    from corefw.messages.request import EmbeddingSpan
    from corefw.plugin_system.manager import PluginManager

__all__ = ["IOProcessing", "IORun", "ProcessedPrompt", "as_io_outputs"]

_MAX_PROMPTS = 65536

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedPrompt:
    """A prompt of the processor's as the core gets it, and its text where it was made of one."""

    ids: list[int]
    spans: tuple[EmbeddingSpan, ...] = ()
    text: str | None = None


class IOProcessing:
    """The chosen processor. Any thread may use it.

    Args:
        processor: made.
        owner: ``distribution/name``, for messages.
        config: says whether embeddings are taken.
        renderer: of the model.

    Attributes:
        modalities: what it takes in chats besides text.
    """

    def __init__(self, processor: IOProcessor, owner: str, config: EngineConfig, renderer: Renderer) -> None:
        self.processor = processor
        self.owner = owner
        self.modalities = processor.modalities
        self._embeds = PromptEmbeds.of(config)
        self._renderer = renderer

    @classmethod
    def choose(cls, plugins: PluginManager, config: EngineConfig, renderer: Renderer) -> IOProcessing | None:
        """The one that the operator, else the model's configuration names; None where nobody names any.

        Raises:
            ConfigError: it can't do what this model does, or two plugins say what media the model takes.
            PluginError: it isn't there, or can't be made; names what is installed.
        """
        media_model = _media_model(plugins, config)
        cls_, selection = choose_io_processor(config, plugins)
        if cls_ is None:
            return None
        name = selection.chosen
        with starting(plugins, IO_PROCESSORS, name):
            processor = cls_(IOSetup(config=config, renderer=renderer, media_model=media_model))
        plugin = plugins.found(IO_PROCESSORS, name)
        assert plugin is not None, "it was chosen by its name"
        plugins.record(selection)
        return cls(processor, plugin.full_name, config, renderer)

    def run(self, request: IORequest) -> IORun:
        """A request's way through the processor.

        Raises:
            EngineError: the processor failed to begin.
        """
        return IORun(self, request)

    def render(self, prompt: IOPrompt, *, param: str) -> ProcessedPrompt:
        """A checked prompt for the core; ``param`` is the field it came from.

        Raises:
            RequestError, ContextLengthError: as the renderer says.
        """
        if prompt.text is not None:
            return ProcessedPrompt(ids=self._renderer.render_text(prompt.text, param=param), text=prompt.text)
        assert prompt.token_ids is not None, "checked before"
        ids = self._renderer.render_ids(list(prompt.token_ids), param=param)
        if not prompt.embeds:
            return ProcessedPrompt(ids=ids)
        placed = self._embeds.placed(ids, prompt.embeds, param=param)
        return ProcessedPrompt(ids=placed.ids, spans=placed.spans)


class IORun:
    """One request: a block at whose end the context is closed.

    Attributes:
        context: the processor's.
    """

    def __init__(self, processing: IOProcessing, request: IORequest) -> None:
        self._processing = processing
        self._processor = processing.processor
        self._is_chat = request.chat is not None
        with self._calling("begin"):
            self.context = _checked(self._processor.begin(request), IOContext)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = tuple(self.context.running)
        if not running:
            self._close()
            return
        # A thread can't be stopped, and it may still use what closing gives back.
        asyncio.gather(*running, return_exceptions=True).add_done_callback(lambda _: self._close())

    @property
    def params(self) -> SamplingParams:
        """As the processor wants them, once it has made its prompts."""
        return self.context.params

    def parse(self) -> None:
        """Let the processor check what came.

        Raises:
            RequestError, CapacityError: its answer to the client.
            EngineError: it failed.
        """
        with self._calling("parse"):
            try:
                self._nothing(self._processor.parse(self.context))
            except ValueError as error:
                raise RequestError(str(error) or "it isn't what this server takes") from None

    def prompts(self) -> list[ProcessedPrompt]:
        """The prompts; see ``parse`` for what it raises."""
        with self._calling("pre_process"):
            made = self._prompts(self._processor.pre_process(self.context))
        return self._rendered(made)

    async def prompts_async(self) -> list[ProcessedPrompt]:
        """As ``prompts``, on the event loop; long texts are rendered beside it."""
        with self._calling("pre_process"):
            made = self._prompts(await self._processor.pre_process_async(self.context))
        return await self.context.in_thread(self._rendered, made)

    def answer(self, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """What the client gets as ``data``; see ``parse`` for what it raises."""
        with self._calling("post_process"):
            return self._plain(self._processor.post_process(self.context, outputs))

    async def answer_async(self, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """As ``answer``, on the event loop."""
        with self._calling("post_process"):
            return self._plain(await self._processor.post_process_async(self.context, outputs))

    def _close(self) -> None:
        try:
            self.context.close()
        except Exception:
            _log.exception("IO processor %s failed to close a request's context", self._processing.owner)

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            if not self._is_chat:
                error.param = "data" if error.param is None else f"data.{error.param}"
            raise
        except (CapacityError, EngineError):
            raise
        except Exception as error:  # the plugin border
            _log.exception("IO processor %s failed in %s on a request", self._processing.owner, method)
            what = str(error) if isinstance(error, _ContractError) else "the log has the details"
            raise EngineError(
                f"IO processor {self._processing.owner} failed in {method} on this request; {what}"
            ) from error

    def _rendered(self, prompts: Sequence[IOPrompt]) -> list[ProcessedPrompt]:
        param = "messages" if self._is_chat else "data"
        return [self._processing.render(prompt, param=param) for prompt in prompts]

    def _prompts(self, made: object) -> list[IOPrompt]:
        prompts = [made] if isinstance(made, IOPrompt) else made
        if not isinstance(prompts, list | tuple) or not prompts:
            raise _ContractError(f"it returned {_kind(made)} in place of one IOPrompt or a list of them")
        if len(prompts) > (1 if self._is_chat else _MAX_PROMPTS):
            raise _ContractError(f"it returned {len(prompts)} prompts, which are too many")
        for prompt in prompts:
            _checked(prompt, IOPrompt)
            if (prompt.text is None) == (prompt.token_ids is None) or (prompt.embeds and prompt.token_ids is None):
                raise _ContractError("each IOPrompt has either text, or token_ids with or without embeds")
        if self.context.params.n != self.context.request.params.n:
            raise _ContractError("it changed n, which is the client's")
        return list(prompts)

    def _plain(self, answer: object) -> Any:
        _no_coroutine(answer)
        problem = plain_problem(answer)
        if problem is not None:
            raise _ContractError(f"it returned what isn't plain data: it {problem}")
        return answer

    @staticmethod
    def _nothing(answer: object) -> None:
        if answer is not None:
            _no_coroutine(answer)
            raise _ContractError(f"it returned {_kind(answer)} in place of nothing")


def as_io_outputs(outputs: Sequence[CompletionOutput]) -> list[IOOutput]:
    """One prompt's outputs as processors see them."""
    return [
        IOOutput(
            text=output.text,
            token_ids=tuple(output.token_ids),
            finish_reason=None if output.finish_reason is None else output.finish_reason.value,
            stop_reason=output.stop_reason,
            logprobs=output.logprobs,
            extensions=output.extensions,
        )
        for output in outputs
    ]


class _ContractError(TypeError):
    """A processor returned something else than its interface says."""


def _checked(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise _ContractError(f"it returned {_kind(value)} in place of {kind.__name__}")
    return value


def _kind(value: object) -> str:
    _no_coroutine(value)
    return "an empty list" if value in ([], ()) else type(value).__name__


def _no_coroutine(value: object) -> None:
    if inspect.iscoroutine(value):
        value.close()
        raise _ContractError("it is an async function; only those named ..._async are awaited")


def _media_model(plugins: PluginManager, config: EngineConfig) -> MediaModel | None:
    found = plugins.collect(MediaModel, corefw_media_model, config)
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(each.owner for each in found)} both say what media the model takes; allow one"
        )
    return found[0].value if found else None
