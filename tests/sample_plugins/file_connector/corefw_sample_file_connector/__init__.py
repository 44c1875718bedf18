"""Keeps KV blocks in files: what one server has computed, the next one loads."""
