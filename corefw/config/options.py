"""How a section of the configuration declares its options."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from corefw.config.checks import MAX_INT, check_options

__all__ = ["Section", "option"]


def option(
    default: Any,
    help_text: str,
    *,
    choices: tuple[str, ...] | None = None,
    flag: str | None = None,
    low: float = 0,
    high: float = MAX_INT,
    may_be_empty: bool = False,
    free_text: bool = False,
    secret: bool = False,
    unique: bool = False,
    mapping: bool = False,
) -> Any:
    """A dataclass field that is also a command-line flag.

    Args:
        default: of the field.
        help_text: of the flag.
        choices: the words that are accepted.
        flag: reserved.
        low: least number that is accepted.
        high: largest number that is accepted.
        may_be_empty: an empty text means something.
        free_text: a text of any length and with any characters.
        secret: never shown in a message.
        unique: of a list: no text may be in it twice.
        mapping: of a text: a JSON object, and Python and files of settings may have the mapping itself.
    """
    metadata = {
        "help": help_text,
        "choices": choices,
        "flag": flag,
        "low": low,
        "high": high,
        "may_be_empty": may_be_empty,
        "free_text": free_text,
        "secret": secret,
        "unique": unique,
        "mapping": mapping,
    }
    return field(default=default, metadata=metadata)


class Section:
    """What all sections share: their options are checked at construction."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_options(self)
