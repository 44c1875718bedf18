"""Policies of the KV cache."""
