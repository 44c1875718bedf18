"""Sample plugins that fail, each in its own way."""
