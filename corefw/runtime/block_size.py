"""How many tokens a KV block has."""

from __future__ import annotations

from collections.abc import Sequence

from corefw.errors import ConfigError
from corefw.interfaces.attention import AttentionBackend

__all__ = ["choose_block_size"]


def choose_block_size(given: int | None, backends: Sequence[type[AttentionBackend]]) -> int:
    """What the user gave, if every backend takes it; else the smallest that all of them take.

    Args:
        given: ``--block-size``.
        backends: those in use. One that takes any size is asked for its default.

    Raises:
        ConfigError: a backend doesn't take the given size, or no size suits all.
    """
    accepted = [(backend.name, backend.capabilities.block_sizes) for backend in backends]
    if given is not None:
        for name, sizes in accepted:
            if sizes and given not in sizes:
                raise ConfigError(
                    f"--block-size {given} isn't accepted by attention backend {name}; use one of "
                    f"{', '.join(map(str, sizes))}"
                )
        return given
    # A default is never undercut: backends that take any size have it for a reason.
    low = max((b.capabilities.default_block_size for b in backends if not b.capabilities.block_sizes), default=1)
    offered = {low, *(size for _, sizes in accepted for size in sizes if size >= low)}
    suitable = [size for size in offered if all(not sizes or size in sizes for _, sizes in accepted)]
    if not suitable:
        listed = "; ".join(f"{name}: {', '.join(map(str, sizes)) or 'any'}" for name, sizes in accepted)
        raise ConfigError(f"no KV block size suits every attention backend in use ({listed}); choose other backends")
    return min(suitable)
