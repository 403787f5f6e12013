"""Connections to shard hosts and their replicas, for each calling thread."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol
from weakref import WeakValueDictionary

from serving.protocol.lookups.lookup_messages import DESCRIBE_PATH, LOOKUP_PATH
from serving.protocol.lookups.version_key import VersionKey
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.replica_group import Replica, ReplicaGroup
from serving.transport.client_settings import ClientLimits, Endpoint
from serving.transport.http2_client import Http2Client

# Positions of the methods among a client's paths.
LOOKUP, DESCRIBE = 0, 1
# Meanwhile every lookup of a replica fails, on each thread until it has connected again.
_MOST_BACKOFF_SECONDS = 0.5
# A shard host ends a connection on which more calls are cancelled early (`count_reset` of
# native/transport/upkeep.cpp: 200, and 33 a second). Each hedge cancels one.
_CANCELS_PER_SECOND, _MOST_CANCELS = 20.0, 100.0


class Serving(Protocol):
    """A user of a version."""

    key: VersionKey


@dataclass(frozen=True, slots=True, eq=False)
class Hosts:
    """Shard hosts of one reading of the hosts file: groups by number, endpoints of all replicas."""

    groups: Mapping[int, ReplicaGroup]
    endpoints: tuple[Endpoint, ...]
    positions: Mapping[Replica, int]
    settings: HostSettings

    @property
    def seconds(self) -> float:
        """Time limit of a lookup."""
        return self.settings.seconds

    def name(self, replica: Replica) -> str:
        """Name of a replica in errors."""
        return self.endpoints[self.positions[replica]].name


class ThreadClient:
    """The connections of one thread, and the number of calls it may still cancel on them."""

    def __init__(self, hosts: Hosts, client: Http2Client) -> None:
        self.hosts, self.client = hosts, client
        self._cancels, self._at = _MOST_CANCELS, 0.0

    def may_cancel(self, now: float) -> bool:
        """Take permission to start a call that another call's answer will cancel."""
        earned = (now - self._at) * _CANCELS_PER_SECOND
        self._cancels, self._at = min(_MOST_CANCELS, self._cancels + earned), now
        if self._cancels < 1.0:
            return False
        self._cancels -= 1.0
        return True


class HostClients:
    """A client for each thread, created at its first call and when the hosts have changed.

    Threads share the state of replicas, but not connections. `now` has the current hosts; it is
    replaced, never changed.
    """

    def __init__(self, settings: HostSettings, *, answer_bytes: int) -> None:
        """Connect nowhere yet; answers have at most `answer_bytes`."""
        self._limits = ClientLimits(
            answer_bytes=answer_bytes, most_backoff_seconds=_MOST_BACKOFF_SECONDS
        )
        self._mine = threading.local()
        self._serving: WeakValueDictionary[int, Serving] = WeakValueDictionary()
        self.now = _hosts(settings, {})

    def serve(self, one: Serving) -> None:
        """Count the version as served while the object lives."""
        self._serving[id(one)] = one

    def served_versions(self) -> frozenset[VersionKey]:
        """Versions that are served, or being loaded."""
        return frozenset(one.key for one in self._serving.copy().values())

    def replace(self, settings: HostSettings) -> None:
        """Call other replicas from the next lookup on; the state of common replicas is kept.

        Raises InputError as `of_this_thread`, and keeps the previous hosts.
        """
        made = _hosts(settings, self.now.groups)
        self._client(made).close()
        self.now = made

    def of_this_thread(self) -> ThreadClient:
        """The client of the calling thread, which has no round open.

        Raises InputError if a library is missing, or an address or a file cannot be used.
        """
        process, mine = os.getpid(), self._mine
        # A forked process must not write to its parent's connections.
        if getattr(mine, "process", 0) != process or mine.found.hosts is not self.now:
            if getattr(mine, "process", 0) == process:
                mine.found.client.close()
            hosts = self.now
            mine.found, mine.process = ThreadClient(hosts, self._client(hosts)), process
        found: ThreadClient = mine.found
        return found

    def _client(self, hosts: Hosts) -> Http2Client:
        return Http2Client(
            hosts.endpoints,
            [LOOKUP_PATH, DESCRIBE_PATH],
            self._limits,
            tls=hosts.settings.tls,
            token=hosts.settings.token,
        )


def _hosts(settings: HostSettings, before: Mapping[int, ReplicaGroup]) -> Hosts:
    groups: dict[int, ReplicaGroup] = {}
    endpoints: list[Endpoint] = []
    positions: dict[Replica, int] = {}
    for host, listed in settings.addresses.items():
        old = before.get(host)
        known = {} if old is None else {one.address: one for one in old.replicas}
        replicas = [known.get(address) or Replica(address) for address in listed]
        if old is None:
            groups[host] = ReplicaGroup(host, replicas, Random())  # noqa: S311
        else:
            groups[host] = old.with_replicas(replicas)
        for replica in replicas:
            positions[replica] = len(endpoints)
            endpoints.append(Endpoint(replica.address, f"shard host {host} at {replica.address}"))
    return Hosts(groups, tuple(endpoints), positions, settings)
