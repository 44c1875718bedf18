"""corefw and other engines on the same work: see ``benchmarks/compare.py``."""
