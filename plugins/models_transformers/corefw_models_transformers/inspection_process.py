"""The process that looks at a model: run as a module; the last line that it writes is the answer, as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["main"]


def main() -> None:
    """``{"refused": reason}``, or ``{"sizes": …}`` with what the engine asks of a configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("architecture")
    parser.add_argument("dtype")
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args()
    print(json.dumps(_answer(given.root, given.architecture, given.dtype, trusted=given.trust_remote_code)))


def _answer(root: str, architecture: str, dtype: str, *, trusted: bool) -> dict[str, Any]:
    from corefw_models_transformers.inspection import inspect_model
    from corefw_models_transformers.refusal import Refused

    try:
        return {"sizes": inspect_model(root, architecture, dtype, trusted=trusted).sizes()}
    except Refused as refused:
        return {"refused": str(refused)}


if __name__ == "__main__":
    main()
