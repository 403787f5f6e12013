"""Connection to Ray, and the resources of its machines."""

import socket
from collections import Counter
from collections.abc import Mapping

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group_table

from serving.cluster.capacity import Room
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError

_CONNECT_SECONDS = 5.0


def connect(address: str, named: str, namespace: str | None = None) -> None:
    """Connect this process to Ray's head at HOST:PORT or `auto`, which the `named` option gives.

    Raises InputError if Ray does not answer there. Without a namespace it is an anonymous one.
    """
    try:
        if address != "auto":
            # Ray itself tries for minutes.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except (OSError, RayError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{named}: expected auto or HOST:PORT of Ray's head, got {address!r}: {error}"
        ) from error


def unreserved_rooms() -> list[Room]:
    """Resources of each machine outside placement groups; other tasks and actors may use them."""
    reserved: dict[str, Counter[str]] = {}
    for group in placement_group_table().values():
        if group["state"] != "REMOVED":
            for number, node in group["bundles_to_node_id"].items():
                reserved.setdefault(node, Counter()).update(group["bundles"][number])
    rooms = []
    for node in ray.nodes():
        if node["Alive"]:
            room, held = _room(node["Resources"]), _room(reserved.get(node["NodeID"], {}))
            rooms.append(Room(room.memory - held.memory, room.cpus - held.cpus))
    return rooms


def whole_rooms() -> list[Room]:
    """Total resources of each machine."""
    return [_room(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def free_in_all() -> str:
    """Free resources of all machines together, in words."""
    room = _room(ray.available_resources())
    return f"all nodes together have {size_text(room.memory)} and {room.cpus:g} CPUs free"


def _room(resources: Mapping[str, float]) -> Room:
    return Room(int(resources.get("memory", 0)), float(resources.get("CPU", 0)))
