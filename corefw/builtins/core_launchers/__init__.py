"""The core's scheduler and its strategies."""
