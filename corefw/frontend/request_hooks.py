"""What plugins do to requests and outputs: edit chats, refuse requests, change texts."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from corefw.errors import CapacityError, EngineError, RequestError
from corefw.frontend.extensions import Extensions
from corefw.frontend.output_processor import GenerationUpdate
from corefw.interfaces.hooks.front_end import (
    ChatDraft,
    ChatEditor,
    GenerationRequest,
    OutputTransform,
    OutputTransformer,
    Refusal,
    RequestValidator,
    corefw_chat_editor,
    corefw_output_transformer,
    corefw_request_validator,
)
from corefw.plugin_system.contributions import Contribution, Guarded

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.plugin_system.manager import PluginManager

__all__ = ["NO_HOOKS", "Guard", "RequestHooks", "TextTransforms"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class _Requirable(Protocol):
    @property
    def required(self) -> bool: ...


T = TypeVar("T", bound=_Requirable)


class Guard(Protocol):
    """``PluginManager.guard``."""

    def __call__(self, contribution: Contribution[Any]) -> Guarded[Any]: ...


class _Called(Generic[T]):
    """A contribution that requests go through: what it raises for the client is raised, its own failures as it says."""

    def __init__(self, contribution: Contribution[T], guard: Guard) -> None:
        self.value = contribution.value
        self.owner = contribution.owner
        self._guarded: Guarded[T] | None = None if contribution.value.required else guard(contribution)

    def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call something of the contribution; None also where it failed or is quarantined, and isn't required.

        Raises:
            RequestError, CapacityError: the plugin's answer to the client.
            EngineError: it failed, and is required.
        """
        if self._guarded is not None:
            result = self._guarded.run(functools.partial(_answers_kept, call, *args, **kwargs))
            if isinstance(result, RequestError | CapacityError):
                raise result
            return result
        try:
            return call(*args, **kwargs)
        except (RequestError, CapacityError):
            raise
        except (Exception, SystemExit) as error:
            logger.exception("plugin %s failed on a request, which fails with it", self.owner)
            raise EngineError(f"plugin {self.owner} failed on this request; the log has the details") from error


def _answers_kept(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | RequestError | CapacityError:
    try:
        return call(*args, **kwargs)
    except (RequestError, CapacityError) as error:
        return error


class RequestHooks:
    """The contributions that hold for requests, each kind in the plugins' order. Any thread may use it.

    Args:
        editors, validators, transformers: of the loaded plugins.
        guard: what calls the ones that aren't required.
        extensions: the plugins that take data with requests.
    """

    def __init__(
        self,
        editors: Sequence[Contribution[ChatEditor]] = (),
        validators: Sequence[Contribution[RequestValidator]] = (),
        transformers: Sequence[Contribution[OutputTransformer]] = (),
        guard: Guard = Guarded,
        extensions: Extensions | None = None,
    ) -> None:
        self.extensions = extensions or Extensions()
        self._editors = tuple(_Called(each, guard) for each in editors)
        self._validators = tuple(_Called(each, guard) for each in validators)
        self._transformers = tuple(_Called(each, guard) for each in transformers)
        self._hides_tokens = next((each.owner for each in self._transformers if each.value.hides_tokens), None)

    @classmethod
    def collect(cls, plugins: PluginManager, config: EngineConfig) -> RequestHooks:
        """Ask the plugins once.

        Raises:
            PluginError: see ``PluginManager.collect``.
        """
        return cls(
            plugins.collect(ChatEditor, corefw_chat_editor, config),
            plugins.collect(RequestValidator, corefw_request_validator, config),
            plugins.collect(OutputTransformer, corefw_output_transformer, config),
            plugins.guard,
            Extensions.collect(plugins, config),
        )

    def edit(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any] | None]:
        """Messages and variables for the template, after all editors.

        Raises:
            RequestError, CapacityError, EngineError: see ``_Called.run``.
        """
        if not self._editors:
            return messages, template_kwargs
        variables = copy.deepcopy(dict(template_kwargs or {}))
        draft = ChatDraft(
            messages=copy.deepcopy(list(messages)), tools=variables.pop("tools", None), template_kwargs=variables
        )
        for editor in self._editors:
            draft = editor.run(_edited, editor.value, draft) or draft
        tools = {} if draft.tools is None else {"tools": draft.tools}
        return draft.messages, {**draft.template_kwargs, **tools}

    def check(self, request: GenerationRequest) -> None:
        """Ask the validators.

        Raises:
            RequestError: one refuses the request, or it asks for what a transformer hides.
            CapacityError, EngineError: see ``_Called.run``.
        """
        if request.params.logprobs is not None:
            self.check_tokens_shown("logprobs")
        if self._validators:  # which can't change what runs
            request = dataclasses.replace(request, prompt_ids=tuple(request.prompt_ids))
        for validator in self._validators:
            refusal = validator.run(_verdict, validator.value, request)
            if refusal is not None:
                raise RequestError(refusal.reason, param=refusal.param, code=refusal.code)

    def check_tokens_shown(self, param: str) -> None:
        """Refuse a field that asks for the tokens themselves, where a plugin hides a part of the text.

        Raises:
            RequestError: it does.
        """
        if self._hides_tokens is not None:
            raise RequestError(
                f"{param} would tell what the plugin {self._hides_tokens} of this server takes out of the text; "
                "leave it out",
                param=param,
                code="unsupported_parameter",
            )

    def transforms(self, request: GenerationRequest, index: int) -> TextTransforms | None:
        """What changes the text of one output; None where nothing does.

        Raises:
            EngineError: see ``_Called.run``.
        """
        if not self._transformers or not request.params.detokenize:
            return None
        begun = [(each, each.run(_begun, each.value, request, index)) for each in self._transformers]
        links = [_Link(called, transform) for called, transform in begun if transform is not None]
        return TextTransforms(links) if links else None


class _Link:
    """One plugin's transform of one output. After a failure the text goes past it."""

    def __init__(self, called: _Called[OutputTransformer], transform: OutputTransform) -> None:
        self._called = called
        self._transform = transform
        self._has_failed = False

    def push(self, text: str) -> str:
        """What may be given out of it now."""
        if not text or self._has_failed:
            return text
        pushed = self._called.run(_text, self._transform.push, text)
        self._has_failed = pushed is None
        return text if pushed is None else pushed

    def flush(self) -> str:
        """What was held back."""
        return "" if self._has_failed else self._called.run(_text, self._transform.flush) or ""


class TextTransforms:
    """The transforms of one output, one behind the other."""

    def __init__(self, links: Sequence[_Link]) -> None:
        self._links = links

    def apply(self, update: GenerationUpdate) -> GenerationUpdate:
        """The update with the text that clients get; the last one has all that was held back.

        Raises:
            RequestError, CapacityError, EngineError: see ``_Called.run``.
        """
        text = update.text
        for link in self._links:
            text = link.push(text)
        if update.finish_reason is not None:
            text += self._flush()
        return dataclasses.replace(update, text=text)

    def _flush(self) -> str:
        tail = ""
        for link in self._links:
            tail = link.push(tail) + link.flush()
        return tail


def _edited(editor: ChatEditor, draft: ChatDraft) -> ChatDraft:
    return _checked(editor.edit(draft), ChatDraft)


def _verdict(validator: RequestValidator, request: GenerationRequest) -> Refusal | None:
    refusal = validator.validate(request)
    if refusal is None:
        return None
    _checked(_checked(refusal, Refusal).reason, str)
    return refusal


def _begun(transformer: OutputTransformer, request: GenerationRequest, index: int) -> OutputTransform | None:
    transform = transformer.begin(request, index)
    return None if transform is None else _checked(transform, OutputTransform)


def _text(call: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> str:
    return _checked(call(*args, **kwargs), str)


def _checked(value: R, kind: type) -> R:
    if not isinstance(value, kind):
        raise TypeError(f"it returned {type(value).__name__}, not {kind.__name__}")
    return value


NO_HOOKS = RequestHooks()
