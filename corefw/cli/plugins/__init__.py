"""``corefw plugins``: what is installed, what became of it and why."""
