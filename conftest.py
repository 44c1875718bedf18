"""What has to be set before any test runs, or imports torch."""

from __future__ import annotations

import os
import signal

from corefw import env

os.environ.update(env.child_environment())

# A shell starts what runs in its background with SIGINT ignored, and children inherit that; here they are to notice it.
signal.signal(signal.SIGINT, signal.default_int_handler)
