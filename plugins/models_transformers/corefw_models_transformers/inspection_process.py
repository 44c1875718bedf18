"""The process that looks at a model: run as a module; its output is the answer, as JSON."""

from __future__ import annotations

import argparse
import json
import os
import threading
from typing import Any

__all__ = ["main"]

_PARENT_GONE = 70


def main() -> None:
    """``{"refused": reason}``, or ``{"sizes": …}`` with what the engine asks of a configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("architecture")
    parser.add_argument("dtype")
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args()
    threading.Thread(target=_end_with_parent, name="parent-guard", daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)  # whatever else is printed, by code of a model too, is no answer
        json.dump(_answer(given.root, given.architecture, given.dtype, trusted=given.trust_remote_code), output)
        output.flush()
        os._exit(0)  # nothing that is left running decides how long the start takes


def _end_with_parent() -> None:
    """The parent keeps the other end of the input open as long as it lives."""
    while os.read(0, 1):
        pass
    os._exit(_PARENT_GONE)


def _answer(root: str, architecture: str, dtype: str, *, trusted: bool) -> dict[str, Any]:
    from corefw_models_transformers.inspection import inspect_model
    from corefw_models_transformers.refusal import Refused

    try:
        return {"sizes": inspect_model(root, architecture, dtype, trusted=trusted).sizes()}
    except Refused as refused:
        return {"refused": str(refused)}


if __name__ == "__main__":
    main()
