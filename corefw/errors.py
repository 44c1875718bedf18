"""The one exception tree of corefw.

::

    CorefwError
    ├── ConfigError            what the operator set is wrong; stops the start
    │   ├── ModelSourceError   a model reference can't be resolved to files
    │   └── ModelFormatError   files were found, but can't be used as a model
    ├── PluginError            a plugin is missing, ambiguous, incompatible or failed
    │   └── PluginUnavailable  raised by a plugin itself: not here, and why
    ├── RequestError           the client's fault; has an HTTP status, a code and a field
    │   ├── ContextLengthError     prompt (and max_tokens) don't fit the context
    │   └── NotFoundError          a model or route of that name isn't served
    ├── CapacityError          no room at the moment; the client may try again
    ├── RequestTimeoutError    the request took longer than the operator lets it
    └── EngineError            our fault
        ├── EngineStartError   the engine core could not start; carries the cause
        ├── EngineAwayError    the engine core can't be relied on at the moment; it is expected back
        └── EngineDeadError    the engine core has gone and won't come back

A message says what, which value, what is accepted, and the remedy. It never repeats unbounded input.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "ConfigError",
    "ContextLengthError",
    "CorefwError",
    "EngineAwayError",
    "EngineDeadError",
    "EngineError",
    "EngineStartError",
    "ModelFormatError",
    "ModelSourceError",
    "NotFoundError",
    "PluginError",
    "PluginUnavailable",
    "RequestError",
    "RequestTimeoutError",
]


class CorefwError(Exception):
    """Base of every error that corefw raises on purpose."""


class ConfigError(CorefwError):
    """What the operator set is wrong, unknown or can't be honoured."""


class ModelSourceError(ConfigError):
    """A model reference can't be resolved to local files."""


class ModelFormatError(ConfigError):
    """Model files are damaged, incomplete or of an unsupported kind."""


class PluginError(CorefwError):
    """A plugin is missing, ambiguous, incompatible or failed to load."""


class PluginUnavailable(PluginError):  # noqa: N818 - the name plugin authors raise, as a statement
    """Raised by a plugin's entry point to say that it can't run here, and why."""


class RequestError(CorefwError):
    """A request is wrong.

    Args:
        message: what is wrong and what would be right.
        param: path of the field, as the client wrote it (``messages[0].content``), if one is at fault.
        code: machine-readable code of the OpenAI error object, if there is one.
        status: HTTP status.
    """

    status = 400
    error_type = "invalid_request_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        if status is not None:
            self.status = status


class ContextLengthError(RequestError):
    """Prompt and requested output don't fit the model's context."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class NotFoundError(RequestError):
    """What the request names isn't served here."""

    status = 404

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "not_found") -> None:
        super().__init__(message, param=param, code=code)


class CapacityError(CorefwError):
    """There is no room for the request now; it may be tried again.

    Args:
        message: room for what, and how much there is.
        status: HTTP status.
        retry_after_s: when there may be room, in whole seconds.
    """

    def __init__(self, message: str, *, status: int = 429, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class RequestTimeoutError(CorefwError):
    """The request took longer than the operator lets requests take."""


class EngineError(CorefwError):
    """Something went wrong inside the engine."""


class EngineStartError(EngineError):
    """The engine core could not start.

    Args:
        message: the cause as the core told it.
        details: the traceback of the core, for the log; never shown to clients.
        kind: ``config`` or ``plugin`` when the cause is one of those errors (its message says it all), else ``engine``.
    """

    def __init__(self, message: str, *, details: str = "", kind: str = "engine") -> None:
        super().__init__(message)
        self.details = details
        self.kind = kind


class EngineAwayError(EngineError):
    """The engine core has died or doesn't answer, and is expected back; requests wait meanwhile."""


class EngineDeadError(EngineError):
    """The engine core has gone and won't come back."""
