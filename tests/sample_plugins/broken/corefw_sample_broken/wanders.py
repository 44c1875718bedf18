"""Works, but prints and leaves the process in another place."""

import os
import sys

from corefw.interfaces.logits_processor import LogitsProcessor

print("hello from a plugin")
sys.path.insert(0, "/sample/first")
sys.path.remove(sys.path[-1])
os.chdir("/")


class Processor(LogitsProcessor):
    """Nothing wrong with it."""
