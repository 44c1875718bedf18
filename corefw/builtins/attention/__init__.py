"""The core's own attention backend, in plain torch."""
