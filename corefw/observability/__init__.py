"""Logging, stats values, Prometheus."""
