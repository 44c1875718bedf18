"""A hook module: writes one line for each process that loaded it to the file named by COREFW_SAMPLE_LOG."""

from __future__ import annotations

import os
from pathlib import Path

from corefw.sdk.plugins import hookimpl


@hookimpl
def corefw_loaded(process: str) -> None:
    """Append pid and role."""
    with Path(os.environ["COREFW_SAMPLE_LOG"]).open("a", encoding="utf-8") as log:
        log.write(f"{os.getpid()} {process}\n")
