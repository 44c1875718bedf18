"""Executors that the core ships."""
