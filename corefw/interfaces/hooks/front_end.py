"""Hooks on a request's way through the front end: a chat before its template, the whole request before it runs, and the
text on its way out. They hold in the server, for whatever generates there, and in the offline ``LLM``.

**When one fails.** ``corefw.errors.RequestError`` and ``CapacityError`` are answers to the client (400, 429). Anything
else is the plugin's failure: a ``required`` object makes that request fail (500), every time; one that isn't is left
out of the request, and quarantined after three failures in a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from corefw.interfaces.hooks.marker import hookspec

if TYPE_CHECKING:
    from corefw.config.engine_config import EngineConfig
    from corefw.messages.request import PlainDict
    from corefw.messages.sampling import SamplingParams

__all__ = [
    "ChatDraft",
    "ChatEditor",
    "GenerationRequest",
    "OutputTransform",
    "OutputTransformer",
    "Refusal",
    "RequestSource",
    "RequestValidator",
    "corefw_chat_editor",
    "corefw_output_transformer",
    "corefw_request_validator",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDraft:
    """A chat on its way to the template. An editor returns a new one; the values are copies, nobody else's.

    Attributes:
        messages: as the client sent them: objects with role and content.
        tools: the functions that the model may call, as the template gets them.
        template_kwargs: further variables of the template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """Where a request comes from. What its way in doesn't know is empty.

    Attributes:
        route: path of the route, ``offline``, or what a plugin called it.
        request_id: the client's name for it.
        model: name under which the client asked.
        prompt: the prompt's text, where it came as one.
        messages: the chat, where it came as one; as sent, before any edit.
        tags: of the request (``metadata`` in the API), for figures.
    """

    route: str = ""
    request_id: str | None = None
    model: str | None = None
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and how it is continued, complete: what the core would get.

    Attributes:
        prompt_ids: token ids.
        params: with seed and ``max_tokens`` filled in.
        priority, cache_salt, extra: for the core.
        source: where it comes from.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    extra: PlainDict = field(default_factory=dict)
    source: RequestSource = field(default_factory=RequestSource)


class ChatEditor(ABC):
    """Edits chats. Called from several threads at once.

    Attributes:
        required: whether a chat that it fails on must not be answered unedited.
    """

    required: ClassVar[bool] = False

    @abstractmethod
    def edit(self, chat: ChatDraft) -> ChatDraft:
        """The chat as the template shall get it; it may be the one given. What it returns is checked like a client's.

        Called once a chat, however often the template is begun.

        Raises:
            RequestError: the client shall get that answer.
        """


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request isn't taken.

    Attributes:
        reason: for the client; ends up in a 400.
        param: the field that is at fault.
        code: for programs.
    """

    reason: str
    param: str | None = None
    code: str | None = None


class RequestValidator(ABC):
    """Says which requests are taken. Called on the event loop, so it must not wait.

    Attributes:
        required: whether a request that it fails on is refused.
    """

    required: ClassVar[bool] = True

    @abstractmethod
    def validate(self, request: GenerationRequest) -> Refusal | None:
        """None to take it. Asked once a prompt, after the core's own checks and before anything runs.

        Raises:
            RequestError, CapacityError: the client shall get that answer.
        """


class OutputTransform(ABC):
    """Of one output, from its begin to its end. The texts of all calls, joined, are what the client gets."""

    @abstractmethod
    def push(self, text: str) -> str:
        """What may be given out now; the rest is held back. Where the text is cut must not change the whole."""

    def flush(self) -> str:
        """What was held back; the output has ended. Not called when a client goes."""
        return ""


class OutputTransformer(ABC):
    """Changes the text of outputs.

    Stop strings are found before, in the model's own text; so a transform sees text up to where the output ends, and
    makes no new end. Several run in the plugins' order. Streamed or not, the text is the same. Token ids, usage and
    log-probabilities are the model's and stay as they are.

    Attributes:
        required: whether an output that it fails on must not go on as it is.
        hides_tokens: the text must not be known otherwise, either: requests that ask for ``logprobs`` or
            ``return_token_ids`` are refused.
    """

    required: ClassVar[bool] = False
    hides_tokens: ClassVar[bool] = False

    @abstractmethod
    def begin(self, request: GenerationRequest, index: int) -> OutputTransform | None:
        """State for output ``index`` of the request's n; None leaves that output alone."""


@hookspec
def corefw_chat_editor(config: EngineConfig) -> ChatEditor | None:
    """Edit chats before the template makes a prompt of them: messages, tools, variables of the template.

    Called once, when the front end has its configuration (process ``front_end``, or the one of an offline ``LLM``).

    Args:
        config: as resolved.

    Returns:
        the editor.
    """


@hookspec
def corefw_request_validator(config: EngineConfig) -> RequestValidator | None:
    """Refuse requests with a reason that the client gets as a 400.

    Called once, when the front end has its configuration (process ``front_end``, or the one of an offline ``LLM``).

    Args:
        config: as resolved.

    Returns:
        the validator.
    """


@hookspec
def corefw_output_transformer(config: EngineConfig) -> OutputTransformer | None:
    """Change the text of outputs on its way to the client, streamed or whole.

    Called once, when the front end has its configuration (process ``front_end``, or the one of an offline ``LLM``).

    Args:
        config: as resolved.

    Returns:
        the transformer.
    """
