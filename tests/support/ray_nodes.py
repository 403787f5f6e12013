"""A cluster of Ray with several nodes on this machine."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RayNodes:
    """A cluster of Ray without resources on its head."""

    cluster: Any
    workers: dict[str, Any]

    @property
    def address(self) -> str:
        return str(self.cluster.address)


@contextmanager
def ray_nodes(count: int, *, memory: int) -> Iterator[RayNodes]:
    """Run a cluster with four CPUs and `memory` bytes for Ray on each node but the head."""
    store = 80 * 2**20
    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False, "memory": 100}
    # Other tests need none of it.
    cluster_utils = importlib.import_module("ray.cluster_utils")
    # It sets this, and commands of other tests would see another environment.
    os.environ.pop("RAY_CLIENT_MODE", None)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        added = [
            cluster.add_node(num_cpus=4, memory=memory, object_store_memory=store)
            for _ in range(count)
        ]
        yield RayNodes(cluster, {node.node_id: node for node in added})
    finally:
        cluster.shutdown()
