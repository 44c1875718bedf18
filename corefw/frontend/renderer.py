"""From what clients send to prompt ids: text, ids, chats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corefw.errors import ContextLengthError, RequestError
from corefw.frontend.chat_messages import template_messages
from corefw.frontend.chat_template import (
    ChatTemplate,
    SlowTemplateError,
    templates_of_directory,
    templates_of_gguf,
    templates_of_option,
)
from corefw.frontend.content_shield import ContentShield
from corefw.frontend.request_hooks import NO_HOOKS, RequestHooks
from corefw.frontend.tokenizer import load_tokenizer
from corefw.frontend.tokenizer.load import open_gguf

if TYPE_CHECKING:
    from corefw.config.engine_config import FrontendConfig, ModelConfig
    from corefw.config.model_info import ModelInfo
    from corefw.frontend.template_pool import Lane

__all__ = ["InsertedChat", "Renderer", "SlowChatError"]

# Below this many bytes a token of the context a text may fit; only longer ones are compared with the longest token.
_PLAUSIBLE_BYTES_PER_TOKEN = 32


@dataclass(frozen=True, slots=True)
class InsertedChat:
    """A chat's ids, and by mark where its insertion begins."""

    ids: list[int]
    offsets: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Ends:
    """What follows a chat's last message: see ``Renderer.render_chat``."""

    add_generation_prompt: bool
    continue_final_message: bool


@dataclass(frozen=True, slots=True)
class _PreparedChat:
    """A chat as the editors left it, ready for the template."""

    variables: dict[str, Any]
    shield: ContentShield
    continue_final_message: bool


class SlowChatError(Exception):
    """A chat's template isn't rendered quickly.

    Attributes:
        finish: renders it in the slow lane; the chat was edited before, and isn't again.
    """

    def __init__(self, finish: Callable[[], list[int]]) -> None:
        super().__init__("the template isn't rendered quickly")
        self.finish = finish


class Renderer:
    """Makes prompt ids. Every method may be called from any thread; long texts take time, so do that.

    Args:
        info: the model.
        model: ``tokenizer`` and ``chat_template`` override the model's own.
        frontend: whether built tokenizers are kept on disk, and control tokens in messages parsed.
        hooks: of plugins, for chats; who generates has them for requests and texts.

    Attributes:
        tokenizer: of the model.
        eos_ids: end tokens: the model's, then those that the vocabulary names.
        hooks: as given.

    Raises:
        ConfigError: no usable tokenizer, or a chat template that isn't valid.
    """

    def __init__(
        self, info: ModelInfo, model: ModelConfig, frontend: FrontendConfig, hooks: RequestHooks = NO_HOOKS
    ) -> None:
        self.hooks = hooks
        self._template = ChatTemplate(_templates(info, model))  # its process starts while the tokenizer is loaded
        self._parses_content = frontend.control_tokens_in_content
        self.tokenizer = load_tokenizer(info, model, frontend)
        self.eos_ids = tuple(dict.fromkeys((*info.eos_ids, *self.tokenizer.eos_ids)))
        self._num_ids = min(self.tokenizer.vocab_size, info.vocab_size)
        self._max_position = model.max_model_len or info.max_position
        self._token_texts = {
            "bos_token": self._text_of(self.tokenizer.bos_id),
            "eos_token": self._text_of(next(iter(self.tokenizer.eos_ids or self.eos_ids), None)),
        }
        self._template.check()

    def render_text(self, text: str, *, param: str, parse_special: bool = True) -> list[int]:
        """Ids of a prompt's text, with the begin token where the model wants one.

        Args:
            text: the prompt.
            param: the field it came in, for errors.
            parse_special: control tokens may be written as text; a begin token written so isn't doubled.

        Raises:
            RequestError: not valid Unicode, or nothing in it.
            ContextLengthError: far too long to fit; others are found when the request is made.
        """
        ids = self.encode(text, param=param, parse_special=parse_special)
        if not ids:
            raise RequestError("the prompt is empty; send at least one character", param=param)
        return ids

    def encode(
        self, text: str, *, param: str, parse_special: bool = True, add_special_tokens: bool = True
    ) -> list[int]:
        """Ids as ``render_text`` makes them, but there may be none, and the begin token may be left out.

        Raises:
            RequestError: not valid Unicode.
            ContextLengthError: far too long to fit.
        """
        self._check_text(text, param)
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens, parse_special=parse_special)
        bos_id = self.tokenizer.bos_id
        if add_special_tokens and self.tokenizer.adds_bos and ids[:2] == [bos_id, bos_id]:
            del ids[0]
        return self._known(ids, param)

    def render_ids(self, ids: Sequence[int], *, param: str) -> list[int]:
        """A prompt given as ids, checked.

        Raises:
            RequestError: empty, not whole numbers, or out of vocabulary.
        """
        if not ids:
            raise RequestError("the prompt is empty; send at least one token id", param=param)
        if any(type(token_id) is not int for token_id in ids):
            raise RequestError("token ids must be whole numbers", param=param)
        if min(ids) < 0 or max(ids) >= self._num_ids:
            wrong = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < self._num_ids)
            raise RequestError(
                f"the token id at position {wrong} is out of vocabulary; ids are in [0, {self._num_ids - 1}]",
                param=param,
            )
        return list(ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        lane: Lane = "any",
    ) -> list[int]:
        """Ids of a chat in the model's template, edited by plugins before.

        The text of a control token in anything that the client sent is text, not that token, unless settings say so.

        Args:
            messages: objects with role and content (text, or a list of text parts); further keys go to the template.
            template_kwargs: further variables of the template (``tools`` …).
            add_generation_prompt: end with the beginning of an assistant's message.
            continue_final_message: end with the last message's text, whatever the template puts after it.
            lane: see ``TemplatePool``.

        Raises:
            SlowChatError: the template isn't rendered quickly, and the lane is the quick one.
            RequestError: malformed messages, no template, or the template refuses; ``param`` is the path.
            CapacityError, EngineError: a plugin says so, or failed.
        """
        shield = ContentShield(self.tokenizer, is_open=self._parses_content)
        ends = _Ends(add_generation_prompt, continue_final_message)
        prepared = self._prepare(shield, messages, template_kwargs, ends)
        try:
            return self._chat_ids(prepared, lane)
        except SlowTemplateError:
            raise SlowChatError(partial(self._chat_ids, prepared, "slow")) from None

    def render_chat_with(
        self,
        messages: Sequence[Mapping[str, Any]],
        insertions: Mapping[str, Sequence[int]],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> InsertedChat:
        """As ``render_chat``, with token ids in the place of marks in the messages' texts.

        Args:
            messages: see ``render_chat``; each mark is in one text, once.
            insertions: ids by mark; marks are ``random_mark``'s.
            template_kwargs, add_generation_prompt, continue_final_message: see ``render_chat``.

        Raises:
            RequestError: also where the template leaves a mark out, or has it twice.
        """
        shield = ContentShield(self.tokenizer, is_open=self._parses_content)
        ends = _Ends(add_generation_prompt, continue_final_message)
        rendered = self._apply_template(self._prepare(shield, messages, template_kwargs, ends), "any")
        ids: list[int] = []
        offsets: dict[str, int] = {}
        for piece in re.split(f"({'|'.join(map(re.escape, insertions))})", rendered) if insertions else [rendered]:
            if piece in insertions:
                if piece in offsets:
                    raise RequestError("the chat template has a part of a message twice", param="messages")
                offsets[piece] = len(ids)
                ids += insertions[piece]
            elif piece:
                ids += shield.encode(piece)
        if len(offsets) < len(insertions):
            raise RequestError(
                "the model's chat template leaves out a part of a message that isn't text", param="messages"
            )
        num_ids = len(ids)
        ids = self._checked_chat(ids)
        return InsertedChat(ids, {mark: offset + len(ids) - num_ids for mark, offset in offsets.items()})

    def _chat_ids(self, prepared: _PreparedChat, lane: Lane) -> list[int]:
        return self._checked_chat(prepared.shield.encode(self._apply_template(prepared, lane)))

    def _prepare(
        self,
        shield: ContentShield,
        messages: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any] | None,
        ends: _Ends,
    ) -> _PreparedChat:
        """The one place where plugins edit a chat."""
        messages, template_kwargs = self.hooks.edit(messages, template_kwargs)
        protected = shield.protect(template_messages(messages))
        if ends.continue_final_message:
            protected[-1]["content"] = shield.ended(protected[-1]["content"])
        variables = {
            "tools": None,  # Hugging Face defines both: templates ask whether they are none, not whether they exist
            "documents": None,
            **self._token_texts,
            **shield.protect(template_kwargs or {}),
            "messages": protected,
            "add_generation_prompt": ends.add_generation_prompt,
        }
        return _PreparedChat(variables, shield, ends.continue_final_message)

    def _apply_template(self, prepared: _PreparedChat, lane: Lane) -> str:
        rendered = self._template.render(prepared.variables, lane=lane)
        if prepared.continue_final_message:
            rendered = prepared.shield.cut_at_end(rendered)
        self._check_text(prepared.shield.unmarked(rendered), "messages")
        return rendered

    def _checked_chat(self, ids: list[int]) -> list[int]:
        bos_id = self.tokenizer.bos_id
        if self.tokenizer.adds_bos and bos_id is not None and ids[:1] != [bos_id]:
            ids = [bos_id, *ids]
        if not ids:
            raise RequestError("the chat template made an empty prompt of the messages", param="messages")
        return self._known(ids, "messages")

    @property
    def chat_template(self) -> str | None:
        """The template's source; None where the model has none."""
        return self._template.source

    def _known(self, ids: list[int], param: str) -> list[int]:
        """A tokenizer may have tokens for which the model has no embedding."""
        if max(ids, default=0) >= self._num_ids:
            text = self._text_of(next(token_id for token_id in ids if token_id >= self._num_ids))
            raise RequestError(f"the model has no embedding for the token {text[:40]!r}; leave it out", param=param)
        return ids

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _check_text(self, text: str, param: str) -> None:
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError("the text has a lone surrogate, which isn't a character", param=param) from error
        if num_bytes <= self._max_position * _PLAUSIBLE_BYTES_PER_TOKEN:
            return
        num_tokens = -(-num_bytes // self.tokenizer.longest_token_bytes)
        if num_tokens >= self._max_position:
            raise ContextLengthError(
                f"the text of {num_bytes} bytes is at least {num_tokens} tokens long, but the context length is "
                f"{self._max_position} tokens; shorten it",
                param=param,
            )


def _templates(info: ModelInfo, model: ModelConfig) -> dict[str, str]:
    if model.chat_template is not None:
        return templates_of_option(model.chat_template)
    if model.tokenizer is not None and Path(model.tokenizer).is_dir():
        found = templates_of_directory(Path(model.tokenizer))
        if found:
            return found
    gguf = open_gguf(info)
    return templates_of_directory(Path(info.files.root)) if gguf is None else templates_of_gguf(gguf.metadata)
