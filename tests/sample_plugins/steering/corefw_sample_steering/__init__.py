"""Adds a vector to the residual stream of requests that ask for it."""
