"""Weights as kernels want them, kept on disk so that later starts needn't lay them out again."""
