"""Ports: one for a server that is started twice, and those that a process's clients come from."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def port_for_two() -> int:
    """A free one that nobody is given by chance meanwhile: below those that the kernel chooses from for port 0."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, first - 20_000), first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def client_ports(pid: int) -> set[int]:
    """Of those that are connected to a process."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            inodes.add(str(link.readlink()))
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(row[2].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in inodes}
