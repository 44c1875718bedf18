"""Fakes, tiny models and conformance suites for the core's tests and for plugin authors."""
