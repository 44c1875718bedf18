"""Sample configuration hooks: names for models, defaults of a house, settings."""
