"""Benchmarks: of any OpenAI-compatible server, and of the engine in this process."""
