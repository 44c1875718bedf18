"""Recorded steps: which batches are replayed instead of computed anew, and the recordings."""
