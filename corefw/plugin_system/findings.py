"""What ``corefw plugins doctor`` finds, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Kind"]


class Kind(StrEnum):
    """What is wrong."""

    NOT_INSTALLED = "not installed"
    STALE_METADATA = "stale metadata"
    WRONG_GROUP = "wrong group"
    WRONG_DECLARATION = "wrong declaration"
    UNKNOWN_NAME = "unknown name"
    SAME_NAME = "same name"
    API_MISMATCH = "API mismatch"
    IMPORT_ERROR = "import error"
    HOOK_FAILS = "hook fails"
    WRONG_KIND = "not what its group asks for"
    PROCESSES_DIFFER = "processes differ"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something to mend.

    Attributes:
        kind: of trouble.
        what: the trouble, in one sentence.
        where: the distribution, file or setting that it comes from.
        remedy: what to do.
    """

    kind: Kind
    what: str
    where: str
    remedy: str
