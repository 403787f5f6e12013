"""Connects to Ray, and asks what its machines have."""

import socket

import ray
from ray._private import state as ray_state
from ray.exceptions import RayError

from serving.cluster.capacity import Room
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


def free_rooms() -> list[Room]:
    """What is free on each machine."""
    return [_room(free) for free in ray_state.available_resources_per_node().values()]


def whole_rooms() -> list[Room]:
    """What each machine has, used or not."""
    return [_room(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _room(resources: dict[str, float]) -> Room:
    return Room(int(resources.get("memory", 0)), float(resources.get("CPU", 0)))
