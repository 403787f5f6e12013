"""Versions whose share a shard host holds."""

import threading
from dataclasses import dataclass
from time import monotonic

from kernels.wording import counted
from serving.protocol.lookups.lookup_messages import Leases
from serving.protocol.lookups.version_key import VersionKey, digest_number
from serving.shard_host.compiled_lookups import CompiledLookups
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import NotFoundError

# After a front has reported that it serves a version, which it does every second.
LEASE_SECONDS = 15.0
# More fronts count as one.
_MOST_FRONTS = 1000


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The share of one version."""

    key: VersionKey
    share: ModelShare

    @property
    def number(self) -> int:
        """Number of the share in lookups."""
        return digest_number(self.share.digest)


class HeldShares:
    """Shares by version, also for compiled code; thread-safe, as the mapping is replaced."""

    def __init__(self) -> None:
        self._shares: dict[VersionKey, HeldShare] = {}
        self.compiled = CompiledLookups()
        self._added: dict[VersionKey, int | None] = {}
        self._leasing = threading.Lock()
        # Ends of the leases of held versions, on the monotonic clock, by front.
        self._leases: dict[VersionKey, dict[int, float]] = {}

    def all(self) -> list[HeldShare]:
        """Shares by model and version."""
        return [self._shares[key] for key in sorted(self._shares)]

    def replace(self, shares: list[HeldShare]) -> None:
        """Replace all shares; running lookups keep theirs."""
        self._shares = {share.key: share for share in shares}
        for key, held in self._shares.items():
            if key not in self._added:
                self._added[key] = self.compiled.add(key, held.share.lookups, held.number)
        for key in self._added.keys() - self._shares.keys():
            added = self._added.pop(key)
            self._leases.pop(key, None)
            if added is not None:
                self.compiled.drop(added)

    def lease(self, leases: Leases) -> None:
        """Renew a front's leases on its served versions; versions that are not held are skipped."""
        now = monotonic()
        with self._leasing:
            for key in self._shares.keys() & set(leases.served):
                known = self._leases.get(key, {})
                fronts = {front: until for front, until in known.items() if until > now}
                is_counted = leases.front in fronts or len(fronts) < _MOST_FRONTS
                fronts[leases.front if is_counted else 0] = now + LEASE_SECONDS
                self._leases[key] = fronts

    def leases(self, key: VersionKey) -> int:
        """Number of fronts that have lately reported a version as served."""
        now = monotonic()
        return sum(until > now for until in self._leases.get(key, {}).values())

    def get(self, key: VersionKey, number: int) -> HeldShare:
        """The share of a number or 0; NotFoundError without it, its manifest or its rows."""
        held = self._shares.get(key)
        if held is not None and number in (0, held.number):
            return held
        if held is not None:
            raise NotFoundError(
                f"model {key.model!r} version {key.version}: this host holds other rows of it than "
                "the lookup names: another host's, or by another plan"
            )
        versions = sorted(held.version for held in self._shares if held.model == key.model)
        if key.version in versions:
            raise NotFoundError(
                f"model {key.model!r} version {key.version}: this host holds another one of this "
                "number: their manifests differ"
            )
        listed = ", ".join(map(str, versions)) or "none"
        raise NotFoundError(
            f"model {key.model!r} version {key.version}: this host does not hold it; of this model "
            f"it holds {counted(len(versions), 'version')}: {listed}"
        )
