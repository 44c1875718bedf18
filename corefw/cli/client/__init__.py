"""A small HTTP client for commands that talk to a server, and the same face for an app in this process."""
