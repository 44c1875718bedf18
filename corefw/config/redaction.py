"""Takes secrets out of what is shown: values of options that are secret, credentials in URLs, keys by their looks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from corefw.config.args import SECTIONS, UserArgs
from corefw.config.plugin_settings import PluginSetting

__all__ = ["HIDDEN", "Redactor"]

HIDDEN = "(set)"

_SECRET_NAME = re.compile(
    r"(?:^|[^a-z])(?:api_?keys?|keys?|token|(?:access|api|auth|bearer)_?tokens|secrets?|passwords?|passwd|pwd|"
    r"passphrases?|credentials?|auth|authorization|cookie)$",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"([?&][^=&\s]*(?:key|token|secret|password|signature|sig)=)[^&\s]+", re.IGNORECASE)
_JSON = re.compile(r"""(["'][^"']*(?:key|token|secret|password)["']\s*:\s*["'])[^"']+""", re.IGNORECASE)
# What hubs and clouds hand out: it is recognised wherever it stands.
_BY_LOOKS = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{16})")
_SHORTEST = 4  # shorter ones would also be parts of ordinary words


class Redactor:
    """Knows the secrets of one command.

    Args:
        args: what the user said.
        more: further secrets, such as those of the environment.
    """

    def __init__(self, args: UserArgs, more: Iterable[str] = ()) -> None:
        self._secret_keys = frozenset(_secret_keys())
        values = {text for value in (*self._secrets(args.values), *more) for text in _texts(value)}
        values = {text for text in values if len(text) >= _SHORTEST}
        self._values = sorted(values, key=len, reverse=True)

    def settings(self, args: UserArgs) -> dict[str, Any]:
        """What the user set, by ``section.field``, as it may be shown."""
        return {key: HIDDEN if self._is_secret(key) else self.tree(value) for key, value in args.values.items()}

    def tree(self, value: Any) -> Any:
        """Plain data with every secret in it hidden."""
        if isinstance(value, PluginSetting):
            return self.tree(value.value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: HIDDEN if self._is_secret(str(key)) else self.tree(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return value if isinstance(value, int | float | None) else self.text(str(value))

    def text(self, text: str) -> str:
        """A text with every secret in it hidden."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        for pattern in (_QUERY, _JSON):
            text = pattern.sub(rf"\g<1>{HIDDEN}", text)
        return _BY_LOOKS.sub(HIDDEN, _CREDENTIALS.sub(HIDDEN, text))

    def _secrets(self, values: Mapping[str, Any]) -> Iterable[object]:
        """What stands under a secret name, at any depth."""
        for key, value in values.items():
            plain = value.value if isinstance(value, PluginSetting) else value
            if self._is_secret(str(key)):
                yield plain
            elif isinstance(plain, Mapping):
                yield from self._secrets(plain)

    def _is_secret(self, key: str) -> bool:
        return key in self._secret_keys or _SECRET_NAME.search(_HUMP.sub("_", key)) is not None


def _secret_keys() -> Iterable[str]:
    for section, owner in SECTIONS.items():
        yield from (f"{section}.{item.name}" for item in dataclasses.fields(owner) if item.metadata.get("secret"))


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from (item for item in value if isinstance(item, str))
    elif isinstance(value, Mapping):
        yield from (item for item in value.values() if isinstance(item, str))
