"""Shard hosts of one version, called over the compiled client."""

from collections.abc import Collection, Mapping, Sequence
from time import monotonic

from serving.errors import DeadlineError
from serving.observability.host_spans import traced_batch_of_thread
from serving.protocol.lookups.compiled_reader import reads_rows
from serving.protocol.lookups.lookup_messages import Described, write_lookups
from serving.protocol.lookups.version_key import VersionKey, digest_number
from serving.remote_lookups.batch_lookups import BatchLookups
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.host_lookup import HostLookup
from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.shard_hosts import PieceBags, StartedLookup


class RemoteHosts:
    """The `ShardHosts` of one version, whose key every lookup has."""

    def __init__(
        self,
        key: VersionKey,
        clients: HostClients,
        wanted: Mapping[int, Described] | None = None,
    ) -> None:
        """Call no host yet. `wanted` is what a replica of each host must hold; None: anything."""
        self.key = key
        self._clients = clients
        self._wanted = wanted or {}
        self._shares = {host: digest_number(one.digest) for host, one in self._wanted.items()}
        clients.serve(self)

    @property
    def hosts(self) -> frozenset[int]:
        """Hosts, as `ShardHosts.hosts`."""
        return frozenset(self._clients.now.groups)

    @property
    def lost(self) -> frozenset[int]:
        """Lost hosts, as `ShardHosts.lost`."""
        groups = self._clients.now.groups
        return frozenset(host for host, group in groups.items() if group.is_lost())

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        """Start lookups, as `ShardHosts.start`."""
        mine, now, traced = self._clients.of_this_thread(), monotonic(), traced_batch_of_thread()
        if deadline <= now:
            raise DeadlineError(
                "the request's deadline had passed when shard hosts were to be asked"
            )
        unknown = asked.keys() - mine.hosts.groups.keys()
        if unknown:
            raise ShardHostError(f"shard host {min(unknown)}: the hosts file names it no longer")
        messages = write_lookups(
            self.key,
            [(groups, self._shares.get(host, 0)) for host, groups in asked.items()],
            rows=all(map(reads_rows, asked.values())),
        )
        started = BatchLookups(mine, now, deadline)
        try:
            for (host, groups), message in zip(asked.items(), messages, strict=True):
                group, wanted = mine.hosts.groups[host], self._wanted.get(host)
                may = host in may_lose
                started.add(
                    HostLookup(group, wanted, message, groups, now, may_lose=may, traced=traced)
                )
            started.send(now)
        except BaseException:
            started.cancel()
            raise
        return started
