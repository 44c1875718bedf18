"""Platforms that the core ships."""
