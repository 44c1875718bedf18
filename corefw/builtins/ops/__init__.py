"""The core's own kernels for named ops."""
