"""The process that looks at a model: run as a module; the last line that it writes is the answer, as JSON."""

from __future__ import annotations

import argparse
import json

__all__ = ["main"]


def main() -> None:
    """``{"refused": reason}``, or ``{"sizes": …}`` with what the engine asks of a configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("architecture")
    parser.add_argument("dtype")
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args()

    from corefw_models_transformers.inspection import inspect_model
    from corefw_models_transformers.refusal import Refused

    try:
        answer = {
            "sizes": inspect_model(given.root, given.architecture, given.dtype, trusted=given.trust_remote_code).sizes()
        }
    except Refused as refused:
        answer = {"refused": str(refused)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
