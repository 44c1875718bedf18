"""Writes down what happened to each request."""
