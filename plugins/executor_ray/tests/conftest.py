"""A Ray cluster of two nodes with a CPU each, on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address, which is that of RAY_ADDRESS meanwhile."""
    from ray.cluster_utils import Cluster

    store = 80 * 2**20
    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": store},
    )
    try:
        nodes.add_node(num_cpus=1, object_store_memory=store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield nodes.address
    finally:
        nodes.shutdown()
