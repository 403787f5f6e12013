"""Checks of the versions that replicas hold, which also show that they answer."""

from collections.abc import Iterable, Mapping
from time import monotonic

from serving.protocol.lookups.lookup_messages import (
    Described,
    Leases,
    read_described,
    write_describe,
)
from serving.remote_lookups.host_clients import DESCRIBE, ThreadClient
from serving.remote_lookups.replica_group import Replica, ReplicaGroup
from serving.transport.http2_client import Answer, OutgoingCall
from sharded_infer.errors import InternalError


def check_replicas(
    mine: ThreadClient,
    groups: Iterable[ReplicaGroup],
    seconds: float,
    leases: Leases,
) -> Mapping[Replica, str]:
    """Check all replicas at once for their groups; return why some gave no answer in `seconds`."""
    asked = [(group, replica) for group in groups for replica in group.replicas]
    message, positions = write_describe("", leases), mine.hosts.positions
    mine.client.start(
        [OutgoingCall(positions[replica], message, seconds, DESCRIBE) for _, replica in asked]
    )
    answers, now = mine.client.finish(), monotonic()
    errors: dict[Replica, str] = {}
    for (group, replica), answer in zip(asked, answers, strict=True):
        error = take_check(group, replica, answer, now)
        if error:
            errors[replica] = error
    return errors


def take_check(group: ReplicaGroup, replica: Replica, answer: Answer, now: float) -> str:
    """Report to a replica's group what it holds; return why it gave no answer, or nothing."""
    held: frozenset[Described] | None = None
    error = ""
    if answer.status is not None:
        error = answer.status.message
    else:
        try:
            held = frozenset(read_described(answer.message))
        except InternalError as refused:
            error = str(refused)
    group.checked(replica, now, held)
    return error
