"""A real server in a real process."""

from corefw.testing.server_process import Server, descendants, is_alive, launch, serving, stop

__all__ = ["Server", "descendants", "is_alive", "launch", "serving", "stop"]
