"""A Ray cluster of two nodes with a CPU each, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

_STORE_BYTES = 80 * 2**20
_ATTEMPTS = 4  # Ray gives a node half a minute to start, which may be too little where others work, too


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address, which is that of RAY_ADDRESS meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            nodes = _two_nodes()
            break
        except Exception:
            if attempt == _ATTEMPTS - 1:
                raise
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes.address
    finally:
        nodes.shutdown()


def _two_nodes() -> Any:
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        nodes.add_node(num_cpus=1, include_dashboard=False, object_store_memory=_STORE_BYTES)
        nodes.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    except BaseException:
        nodes.shutdown()
        raise
    return nodes
