"""Kernels in C++ for models that run on the processor."""
