"""Can't be imported."""

import corefw_sample_missing_driver  # noqa: F401
