"""Placement of the rows of a version's plan: here, and on shard hosts with the same version."""

import logging
import secrets
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.lookups.lookup_messages import Described, Leases
from serving.protocol.lookups.version_key import VersionKey, version_key
from serving.remote_lookups.described_hosts import described_hosts
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import read_settings
from serving.remote_lookups.remote_hosts import RemoteHosts
from serving.remote_lookups.replica_checks import check_replicas
from serving.remote_lookups.replica_group import Replica
from serving.remote_lookups.told_counts import ToldCounts
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.errors import InputError, PlanError, ShardHostError
from sharded_infer.lookups.placement import (
    PlacedPiece,
    mapped_by_hosts,
    place_stored,
    share_digest,
    share_of,
)
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.share_fetch import fetch_share

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 1.0
# Of a check, so that a stopped replica does not delay the others.
_CHECK_SECONDS = 1.0


class Fronts:
    """Opens versions as a front, from the file of `serve --shard-hosts`."""

    def __init__(self, file: Path, *, answer_bytes: int) -> None:
        """Read the `hosts_file`, without connecting; InputError if it cannot be used."""
        self._file = file
        self._settings = read_settings(file)
        self._error = ""
        # Shard hosts count fronts by this number, which the processes of a front share.
        self._number = secrets.randbits(64)
        self._clients = HostClients(self._settings, answer_bytes=answer_bytes)
        # Refuses unusable addresses and certificates.
        self._clients.of_this_thread()

    def watch(self, metrics: ServerMetrics) -> None:
        """Start a daemon thread that looks at the file and at the replicas, and reports lookups."""
        told = ToldCounts(metrics)

        def run() -> None:
            stop = threading.Event()
            while not stop.wait(_LOOK_SECONDS):
                try:
                    self.look()
                    told.tell(self._clients.now.groups.values())
                except Exception:
                    # Lookups go on with what is known.
                    _log.exception("internal error in looking at shard hosts")

        threading.Thread(target=run, name="shard-hosts", daemon=True).start()

    def described(self) -> list[dict[str, Any]]:
        """Replicas as `described_hosts`."""
        return described_hosts(self._clients.now.groups)

    def look(self) -> None:
        """Read a changed file, report served versions to replicas, and check what they hold."""
        try:
            settings = read_settings(self._file)
            if settings != self._settings:
                self._clients.replace(settings)
                self._settings = settings
                _log.info("%s: read anew: %d shard hosts", self._file, len(settings.addresses))
            self._error = ""
        except InputError as error:
            if str(error) != self._error:
                self._error = str(error)
                _log.warning("the shard hosts stay as they were: %s", error)
        mine = self._clients.of_this_thread()
        leases = Leases(self._number, tuple(self._clients.served_versions()))
        check_replicas(mine, mine.hosts.groups.values(), _CHECK_SECONDS, leases)

    def front_of(self, artifact: Artifact, plan: Plan) -> Front | None:
        """Remote placement of a version's rows; None if all are here.

        Raises PlanError if the file leaves out several hosts, and ShardHostError if no replica of a
        host holds this very version.
        """
        placed = place_stored(plan, artifact)
        own, asked = _hosts_of(plan, placed, self._clients.now.groups)
        if not asked:
            return None
        key = version_key(artifact.manifest)
        mapped = mapped_by_hosts(placed, artifact.manifest.model_spec())
        wanted = {
            host: Described(
                key, plan.topology.name, host, share_digest(share_of(placed, host), mapped)
            )
            for host in asked
        }
        # From now on the hosts keep it, unless they dropped it meanwhile.
        hosts = RemoteHosts(key, self._clients, wanted)
        self._check(wanted, key)
        return Front(hosts, own)

    def fetch(
        self,
        repository: Repository,
        model: str,
        version: int,
        progress: Progress,
        *,
        topology: str | None,
    ) -> Path:
        """Fetch and verify a version without the rows of remote hosts; raises as `fetch_share`.

        By default the plan is the version's first. Raises InputError if the hosts file cannot be
        used, PlanError as `front_of`.
        """
        artifact = repository.open(model, version)
        plan = artifact.plan(topology)
        # As the file is now: the fetching process does not watch it.
        named = read_settings(self._file).addresses
        own, _ = _hosts_of(plan, place_stored(plan, artifact), named)
        return fetch_share(repository, artifact, plan, own, with_tower=True, progress=progress)

    def _check(self, wanted: Mapping[int, Described], key: VersionKey) -> None:
        """Check that a replica of each host holds the version, by the same plan and numbers."""
        mine = self._clients.of_this_thread()
        groups = [mine.hosts.groups[host] for host in wanted]
        errors = check_replicas(mine, groups, mine.hosts.seconds, Leases(self._number, (key,)))
        for group in groups:
            one = wanted[group.host]
            reasons = [_reason(replica, one, errors.get(replica)) for replica in group.replicas]
            if all(reasons):
                named = zip(group.replicas, reasons, strict=True)
                raise ShardHostError(
                    "; ".join(f"{mine.hosts.name(replica)}{reason}" for replica, reason in named)
                )


def _hosts_of(
    plan: Plan, placed: list[PlacedPiece], named: Collection[int]
) -> tuple[int | None, list[int]]:
    """The host whose rows are here, if any, and the remote hosts."""
    hosts = {piece.host for piece in placed}
    own = sorted(hosts.difference(named))
    if len(own) > 1:
        raise PlanError(
            f"topology {plan.topology.name!r}: the hosts file names no address of hosts "
            f"{', '.join(map(str, own))}: expected all but one, whose rows this server holds"
        )
    return own[0] if own else None, sorted(hosts.intersection(named))


def _reason(replica: Replica, wanted: Described, error: str | None) -> str:
    if error is not None:
        return f": {error}"
    what = f"model {wanted.key.model!r} version {wanted.key.version}"
    held = {one.key: one for one in replica.held or ()}.get(wanted.key)
    if held is None:
        return f" does not hold {what}"
    if (held.host, held.topology) != (wanted.host, wanted.topology):
        return (
            f" holds {what} as host {held.host} of topology {held.topology!r}, "
            f"expected host {wanted.host} of {wanted.topology!r}"
        )
    if held.digest != wanted.digest:
        return f" numbers the pieces of {what} or maps their ids otherwise: its release is another"
    return ""
