"""Quantisation methods."""
