"""Managers of the core's KV-cache specs."""
