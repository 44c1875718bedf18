"""Sample endpoint plugin: one route."""
