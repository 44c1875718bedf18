"""Ends the process, as a fault in native code does."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
