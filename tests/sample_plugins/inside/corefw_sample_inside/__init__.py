"""Sample endpoint plugin: what the server's own event loop holds."""
