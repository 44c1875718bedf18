"""Works, but leaves a copy of the process behind that goes on like the original."""

import os

from corefw.interfaces.logits_processor import LogitsProcessor

os.fork()


class Processor(LogitsProcessor):
    """Nothing wrong with it."""
