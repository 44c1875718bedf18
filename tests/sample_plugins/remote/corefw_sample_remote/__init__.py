"""Functions to call in the engine, and events from it."""
