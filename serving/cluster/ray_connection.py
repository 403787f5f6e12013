"""Connects to Ray, and asks what its machines have."""

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
    """Connects this process to Ray.

    Args:
        address: HOST:PORT of its head, or `auto`.
        named: the field or option that gives the address, in messages.
        namespace: of actors' names; None: one of its own.

    Raises:
        InputError: Ray does not answer at the address.
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
    """What no placement group holds of each machine; other tasks and actors may use it."""
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
    """What each machine has, used or not."""
    return [_room(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def free_in_all() -> str:
    """What all machines together have free, in words."""
    room = _room(ray.available_resources())
    return f"all nodes together have {size_text(room.memory)} and {room.cpus:g} CPUs free"


def _room(resources: Mapping[str, float]) -> Room:
    return Room(int(resources.get("memory", 0)), float(resources.get("CPU", 0)))
