"""Offline use: a model in one's own program, many prompts at once, whole results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from corefw.collections_paused import collections_paused
from corefw.config.args import UserArgs
from corefw.errors import ConfigError, EngineDeadError, RequestError
from corefw.frontend.batch_generator import BatchGenerator, BatchItem, naming_prompt
from corefw.frontend.chat_messages import check_template_ends, has_media
from corefw.frontend.io_processing import IOProcessing, IORun, as_io_outputs
from corefw.frontend.offline_engine import open_engine
from corefw.frontend.output_processor import GenerationUpdate
from corefw.frontend.prompt_embeds import PromptEmbeds
from corefw.frontend.results import CompletionOutput, RequestOutput
from corefw.frontend.sampling_defaults import SamplingDefaults
from corefw.interfaces.hooks.front_end import RequestSource
from corefw.interfaces.io_processor import IOChat, IORequest
from corefw.messages.sampling import SamplingParams

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.config.runtime_plan import RuntimePlan
    from corefw.engine.llm_engine import LLMEngine
    from corefw.messages.events import PluginEvent
    from corefw.messages.request import EmbeddingSpan

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]

Prompt = str | Sequence[int] | Mapping[str, Any]
Conversation = Sequence[Mapping[str, Any]]
Extensions = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """A prompt as the core gets it, and what it was made of; ``run`` where an IO processor made it."""

    ids: list[int]
    text: str | None = None
    cache_salt: str | None = None
    embeds: tuple[EmbeddingSpan, ...] = ()
    messages: Conversation | None = None
    run: IORun | None = None


class LLM:
    """A model, loaded once and used by one thread. A context manager; ``close`` frees what it holds.

    Args:
        model: directory, ``.gguf`` file, ``pypi:PACKAGE`` or hub name; None is the demo model.
        plugin_config: values of plugins' own settings, by plugin and field.
        enable_multiprocessing: whether the engine runs in a process of its own, which is started again when it dies.
            None: where there are several (``data_parallel_size``) or ``data_parallel_backend`` starts them elsewhere:
                those never run in this process.
        settings: named like the flags of ``corefw serve`` (``max_model_len=512``), those of the HTTP server excepted.

    Raises:
        ConfigError: an unknown setting, or one that can't be honoured.
        PluginError, EngineStartError: the engine can't start.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        plugin_config: Mapping[str, Mapping[str, object]] | None = None,
        enable_multiprocessing: bool | None = None,
        **settings: object,
    ) -> None:
        named = settings if model is None else {"model": model, **settings}
        args = UserArgs.from_keywords(plugin_config=plugin_config, **named)
        if args.section("server"):
            names = ", ".join(args.section("server"))
            raise ConfigError(f"{names}: only the HTTP server has such settings; leave them out of LLM()")
        self._engine: LLMEngine | None = None
        with collections_paused():
            prepared, engine = open_engine(args, enable_multiprocessing)
        self._renderer = prepared.renderer
        self._processing = prepared.processing
        self._engine = engine
        self._generator = BatchGenerator(engine, prepared.renderer, prepared.renderer.hooks)
        self._defaults = SamplingDefaults.of_model(prepared.config.model, prepared.config.model_info)

    @property
    def config(self) -> EngineConfig:
        """What was resolved from the settings, with every decision and its reason."""
        return self._running().config

    @property
    def plan(self) -> RuntimePlan:
        """What was decided at start: KV blocks, context length, backends."""
        return self._running().plan

    @property
    def engine(self) -> LLMEngine:
        """The engine below. Its requests and this object's must not run at the same time."""
        return self._running()

    def default_params(self, **values: Any) -> SamplingParams:
        """The model's own sampling defaults (see ``--generation-config``); ``values`` replace them.

        Raises:
            RequestError: a value is out of range.
        """
        return self._defaults.params(**values)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: Sequence[int] | None = None,
        extensions: Extensions = None,
    ) -> list[RequestOutput]:
        """Continue prompts; all run together, results come in their order.

        Args:
            prompts: a text, a list of token ids, ``{"prompt": text}``, ``{"prompt_token_ids": ids}``,
                ``{"prompt_embeds": array}`` or ``{"prompt_token_ids": ids, "prompt_embeds": {position: array}}``
                (each with ``cache_salt``), or a list of these. Arrays, or tensors, are [positions, width]; they take
                the place of the ids from their position on, and need ``enable_prompt_embeds=True``. Or
                ``{"data": …}`` for the IO processor: its result has ``data``, and the outputs of all its prompts.
            sampling_params: for all prompts, or one for each; None takes the model's own defaults.
            use_tqdm: show a progress bar; None shows it where standard error is a terminal.
            priority: one number a prompt, smaller is sooner.
            extensions: data for plugins, ``{"<plugin>": {…}}``, for all prompts or one for each.

        Raises:
            RequestError: a prompt or parameter is wrong; the message names the prompt. Nothing runs then.
            EngineError: the engine failed.
        """
        listed = _listed(prompts)
        given = self._params(sampling_params, len(listed))
        with ExitStack() as runs:
            rendered = []
            for position, prompt in enumerate(listed):
                with naming_prompt(position):
                    if isinstance(prompt, Mapping) and "data" in prompt:
                        rendered.append(self._process(prompt, given[position], runs))
                    else:
                        rendered.append([self._render(prompt)])
            return self._run(rendered, given, use_tqdm, priority, extensions)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        extensions: Extensions = None,
    ) -> list[RequestOutput]:
        """Answer conversations in the model's chat template.

        Args:
            messages: one conversation (objects with role and content), or a list of them.
            sampling_params, use_tqdm, extensions: see ``generate``.
            chat_template_kwargs: further variables of the template.
            add_generation_prompt: end the prompt with the beginning of an assistant's message; None is True, unless
                ``continue_final_message``.
            continue_final_message: end the prompt with the last message's text, which the answer then continues.

        Raises:
            RequestError, EngineError: see ``generate``; or both of the above are True.
        """
        check_template_ends(add_generation_prompt, continue_final_message)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        given = self._params(sampling_params, len(conversations))
        with ExitStack() as runs:
            rendered = []
            for position, conversation in enumerate(conversations):
                chat = IOChat(
                    messages=conversation,  # type: ignore[arg-type]  # the list was told from the list of lists above
                    template_kwargs=chat_template_kwargs,
                    add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
                    continue_final_message=continue_final_message,
                )
                with naming_prompt(position):
                    rendered.append([self._render_chat(chat, given[position], runs)])
            return self._run(rendered, given, use_tqdm, None, extensions)

    def call_plugin(self, name: str, *args: Any) -> Any:
        """Call a function that a plugin offers in the engine (``corefw_rpc_handlers``), with plain data.

        Args:
            name: ``plugin.method``.

        Raises:
            RequestError: there is no such function, it failed, or the arguments aren't plain data.
        """
        return self._running().call_plugin(name, *args)

    def take_events(self) -> list[PluginEvent]:
        """What plugins in the engine have told since the last call; of many unread events the newest 1024."""
        return self._running().take_events()

    def reset_prefix_cache(self) -> bool:
        """Forget all prompts that the cache holds. False, and nothing is, where requests still hold blocks."""
        return bool(self._running().call("reset_prefix_cache"))

    def close(self) -> None:
        """Free model and cache. May be called twice."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
            del self._generator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> LLMEngine:
        if self._engine is None:
            raise EngineDeadError("this LLM has been closed; make a new one")
        return self._engine

    def _render(self, prompt: Prompt) -> _Rendered:
        if isinstance(prompt, str):
            return _Rendered(ids=self._renderer.render_text(prompt, param="prompt"), text=prompt)
        if not isinstance(prompt, Mapping):
            return _Rendered(ids=self._render_ids(prompt, "prompt"))
        unknown = sorted(str(key)[:40] for key in set(prompt) - _PROMPT_KEYS)
        given = prompt.keys() & {"prompt", "prompt_token_ids", "prompt_embeds"}
        if unknown or (len(given) != 1 and given != {"prompt_token_ids", "prompt_embeds"}):
            raise RequestError(
                "a prompt object has one of prompt (text), prompt_token_ids (ids) and prompt_embeds (an array), or the "
                "last two together, and may have cache_salt" + (f"; got {', '.join(unknown)}" if unknown else "")
            )
        if "prompt_embeds" in given:
            rendered = self._render_embeds(prompt)
        elif "prompt_token_ids" in given:
            rendered = _Rendered(ids=self._render_ids(prompt["prompt_token_ids"], "prompt_token_ids"))
        else:
            rendered = self._render(prompt["prompt"])
        return replace(rendered, cache_salt=prompt.get("cache_salt"))

    def _render_ids(self, ids: Any, param: str) -> list[int]:
        if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
            accepted = "text, or a list of token ids" if param == "prompt" else "a list of token ids"
            raise RequestError(f"{param} has to be {accepted}, not {type(ids).__name__}", param=param)
        return self._renderer.render_ids(list(ids), param=param)

    def _render_embeds(self, prompt: Mapping[str, Any]) -> _Rendered:
        embeds, reader = prompt["prompt_embeds"], PromptEmbeds.of(self._running().config)
        if "prompt_token_ids" not in prompt:
            read = reader.whole(embeds)
        elif isinstance(embeds, Mapping):
            ids = self._render_ids(prompt["prompt_token_ids"], "prompt_token_ids")
            read = reader.placed(ids, embeds)
        else:
            raise RequestError(
                "beside prompt_token_ids, prompt_embeds says where each array stands: {position: array}",
                param="prompt_embeds",
            )
        return _Rendered(ids=read.ids, embeds=read.spans)

    def _render_chat(self, chat: IOChat, params: SamplingParams, runs: ExitStack) -> _Rendered:
        if self._processing is not None and self._processing.modalities and has_media(chat.messages):
            (rendered,) = self._through(self._processing, IORequest(params=params, chat=chat), runs)
            return replace(rendered, messages=chat.messages)
        ids = self._renderer.render_chat(
            chat.messages,
            template_kwargs=chat.template_kwargs,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )
        return _Rendered(ids=ids, messages=chat.messages)

    def _process(self, prompt: Mapping[str, Any], params: SamplingParams, runs: ExitStack) -> list[_Rendered]:
        if self._processing is None:
            raise RequestError(
                "there is no IO processor that takes data; name one: io_processor_plugin=…", param="data"
            )
        if not prompt.keys() <= {"data", "cache_salt"}:
            raise RequestError("a prompt object with data may have cache_salt besides, and nothing else")
        salt = prompt.get("cache_salt")
        return self._through(self._processing, IORequest(params=params, data=prompt["data"], cache_salt=salt), runs)

    @staticmethod
    def _through(processing: IOProcessing, request: IORequest, runs: ExitStack) -> list[_Rendered]:
        run = runs.enter_context(processing.run(request))
        run.parse()
        return [
            _Rendered(ids=made.ids, text=made.text, embeds=made.spans, cache_salt=request.cache_salt, run=run)
            for made in run.prompts()
        ]

    def _params(self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> Sequence[Any]:
        self._running()
        return _one_each("sampling_params", self.default_params() if given is None else given, num_prompts)

    def _run(
        self,
        rendered: Sequence[Sequence[_Rendered]],
        params: Sequence[SamplingParams],
        use_tqdm: bool | None,
        priority: Sequence[int] | None,
        extensions: Extensions,
    ) -> list[RequestOutput]:
        priorities = _one_each("priority", 0 if priority is None else priority, len(rendered))
        extended = _one_each("extensions", extensions, len(rendered))
        items = [
            BatchItem(
                prompt_ids=prompt.ids,
                params=params[i] if prompt.run is None else prompt.run.params,
                text=prompt.text,
                priority=priorities[i],
                cache_salt=prompt.cache_salt,
                prompt_embeds=prompt.embeds,
                extensions=extended[i],
                source=RequestSource(route="offline", prompt=prompt.text, messages=prompt.messages),
            )
            for i, prompts in enumerate(rendered)
            for prompt in prompts
        ]
        with _progress(sum(item.params.n for item in items), use_tqdm) as on_update:
            results = iter(self._generator.generate(items, on_update))
        return [_joined(prompts, [next(results) for _ in prompts]) for prompts in rendered]


def _joined(prompts: Sequence[_Rendered], results: Sequence[RequestOutput]) -> RequestOutput:
    """What became of one prompt of the caller's: where it was data, the processor answers."""
    first, run = results[0], prompts[0].run
    if run is None or prompts[0].messages is not None:
        return first
    data = run.answer([as_io_outputs(result.outputs) for result in results])
    return replace(first, outputs=[output for result in results for output in result.outputs], data=data)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
    """One prompt as a list of one; a list of whole numbers is one prompt."""
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return prompts


def _one_each(name: str, values: Any, num_prompts: int) -> Sequence[Any]:
    if not isinstance(values, Sequence):
        return [values] * num_prompts
    if len(values) != num_prompts:
        raise RequestError(
            f"{name} must be one for all or one for each prompt: got {len(values)} for {num_prompts} prompts",
            param=name,
        )
    return values


@contextmanager
def _progress(num_outputs: int, use_tqdm: bool | None) -> Iterator[Callable[[int, GenerationUpdate], None] | None]:
    """A bar that counts finished outputs and shows tokens per second."""
    if not (sys.stderr.isatty() if use_tqdm is None else use_tqdm):
        yield None
        return
    with importlib.import_module("tqdm").tqdm(total=num_outputs, desc="outputs", unit="output") as bar:
        num_tokens = 0

        def on_update(_: int, update: GenerationUpdate) -> None:
            nonlocal num_tokens
            num_tokens += len(update.token_ids)
            if update.finish_reason is not None:
                elapsed_s = max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(f"{num_tokens / elapsed_s:.1f} tokens/s", refresh=False)
                bar.update()

        yield on_update
