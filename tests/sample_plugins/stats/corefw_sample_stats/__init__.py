"""Sample stat loggers: one to a file, one that fails."""
