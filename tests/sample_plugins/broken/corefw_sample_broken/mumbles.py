"""Fails with an error that can't tell what it is."""


class MumbleError(Exception):
    """Has no message."""

    def __str__(self) -> str:
        raise RuntimeError


raise MumbleError
