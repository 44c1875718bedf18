"""What has to be set before any test module imports torch."""

from __future__ import annotations

import os

from corefw import env

os.environ.update(env.child_environment())
