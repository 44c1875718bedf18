"""A hook module: puts the house's rules in front of every chat, and refuses what is too long for the house."""

from __future__ import annotations

import dataclasses

from corefw.interfaces.hooks.front_end import ChatDraft, ChatEditor, GenerationRequest, Refusal, RequestValidator
from corefw.sdk.plugins import get_logger, hookimpl

_MAX_TOKENS = 500
_RULES = {"role": "system", "content": "Answer in upper case."}

logger = get_logger(__name__)


class HouseEditor(ChatEditor):
    """Puts a system message first, unless there is one."""

    def edit(self, chat: ChatDraft) -> ChatDraft:
        """The chat with the rules."""
        if chat.messages and chat.messages[0].get("role") == "system":
            return chat
        return dataclasses.replace(chat, messages=[_RULES, *chat.messages])


class HouseValidator(RequestValidator):
    """Refuses long outputs."""

    def validate(self, request: GenerationRequest) -> Refusal | None:
        """None up to the limit."""
        if (request.params.max_tokens or 0) <= _MAX_TOKENS:
            return None
        logger.info("refused a request of %s", request.source.route)
        return Refusal(f"this house gives {_MAX_TOKENS} tokens at most", param="max_tokens", code="house_rules")


@hookimpl
def corefw_chat_editor() -> ChatEditor:
    """The editor."""
    return HouseEditor()


@hookimpl
def corefw_request_validator() -> RequestValidator:
    """The validator."""
    return HouseValidator()
