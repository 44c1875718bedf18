"""A form that the model fills in: data are names of fields, the answer has their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from corefw.errors import RequestError
from corefw.interfaces.io_processor import IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, IOSetup
from corefw.sdk.config import EngineConfig


class Form(msgspec.Struct, forbid_unknown_fields=True):
    """What clients send as ``data``."""

    fields: list[str]
    about: str = "a person"


class FormContext(IOContext):
    """A form on its way; ``log`` gets a line when the way ends."""

    form: Form

    def __init__(self, request: IORequest, log: Path | None) -> None:
        super().__init__(request)
        self.log = log

    def close(self) -> None:
        """Say so."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write("closed\n")


class FormProcessor(IOProcessor):
    """One prompt a field."""

    name = "form"

    def __init__(self, setup: IOSetup) -> None:
        super().__init__(setup)
        self._log = _log_of(setup.config)

    def begin(self, request: IORequest) -> FormContext:
        """A context without a form."""
        return FormContext(request, self._log)

    def parse(self, context: IOContext) -> None:
        """What isn't a form is the client's fault: msgspec's errors are ValueErrors."""
        assert isinstance(context, FormContext)
        context.form = msgspec.convert(context.request.data, Form)
        if not context.form.fields:
            raise RequestError("a form has at least one field", param="fields")

    def pre_process(self, context: IOContext) -> Sequence[IOPrompt]:
        """Greedy, whatever the client said."""
        assert isinstance(context, FormContext)
        context.params = msgspec.structs.replace(context.params, temperature=0.0)
        about = context.form.about
        return [IOPrompt(text=f"The {field} of {about} is") for field in context.form.fields]

    def post_process(self, context: IOContext, outputs: Sequence[Sequence[IOOutput]]) -> Any:
        """The values, by field."""
        assert isinstance(context, FormContext)
        values = [[output.text for output in each] for each in outputs]
        return dict(zip(context.form.fields, values, strict=True))


def _log_of(config: EngineConfig) -> Path | None:
    """Beside the model, where there is such a file."""
    path = Path(config.model_info.files.root) / "forms.log"
    return path if path.exists() else None
