"""Built-in communicators."""
