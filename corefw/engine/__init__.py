"""Request bookkeeping, the core loop, its process, and the clients that talk to it. No torch."""
