"""Loads a host's share of the newest versions of each model, and drops older ones."""

import logging
from collections.abc import Sequence
from pathlib import Path

from serving.protocol.lookups.version_key import version_key
from serving.shard_host.held_shares import HeldShare, HeldShares
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.share_fetch import fetch_share

_log = logging.getLogger("sharded_infer")
# Fronts move to a new version one after another.
_KEPT_VERSIONS = 2
# Of a model's older versions, those with most leases: anyone who reaches a host may lease.
_MOST_OLDER = 4


class ShareLoader:
    """Keeps `HeldShares` up to date with a repository; one thread uses it."""

    def __init__(
        self,
        repository: Repository,
        shares: HeldShares,
        host: int,
        *,
        models: Sequence[str] = (),
        topology: str | None = None,
        row_memory_bytes: int | None = None,
    ) -> None:
        """Load nothing yet.

        Without models all are held; without a topology, each version's first plan is used. All rows
        of a version are in memory without `row_memory_bytes`.
        """
        self._repository = repository
        self._shares = shares
        self._host = host
        self._models = models
        self._topology = topology
        self._row_memory_bytes = row_memory_bytes
        self._held: dict[tuple[str, int], tuple[HeldShare, Path]] = {}
        # Reasons of failed loads, logged once.
        self._failed: dict[tuple[str, int], str] = {}

    def look(self, progress: Progress = no_progress) -> None:
        """Load new versions, retrying failed ones, then drop older ones without a front's lease."""
        for model in self._models or self._repository.models():
            wanted = self._repository.versions(model)[-_KEPT_VERSIONS:]
            for version in wanted:
                if (model, version) not in self._held:
                    self._try(model, version, progress)
            self._drop(model, wanted)

    def _try(self, model: str, version: int, progress: Progress) -> None:
        try:
            self._load(model, version, progress)
        except (ShardedInferError, OSError) as error:
            if self._failed.get((model, version)) != str(error):
                _log.error("%s version %d: its share cannot be loaded: %s", model, version, error)
            self._failed[model, version] = str(error)

    def _load(self, model: str, version: int, progress: Progress) -> None:
        opened = self._repository.open(model, version)
        plan = opened.plan(self._topology)
        path = fetch_share(
            self._repository, opened, plan, self._host, with_tower=False, progress=progress
        )
        try:
            artifact = Artifact(path, opened.manifest)
            share = ModelShare(
                artifact,
                plan,
                self._host,
                row_memory_bytes=self._row_memory_bytes,
                progress=progress,
            )
        except BaseException:
            self._repository.release(path)
            raise
        held = HeldShare(version_key(artifact.manifest), share)
        self._held[model, version] = held, path
        self._publish()
        _log.info(
            "holds %s version %d",
            model,
            version,
            extra={"model": model, "version": version, "table_bytes": share.table_bytes},
        )

    def _drop(self, model: str, wanted: Sequence[int]) -> None:
        # Wanted versions must be here first: fronts may still call for the others.
        if any((model, version) not in self._held for version in wanted):
            return
        older = {
            key: self._shares.leases(held.key)
            for key, (held, _) in self._held.items()
            if key[0] == model and key[1] not in wanted
        }
        kept = sorted(older, key=lambda key: (older[key], key), reverse=True)[:_MOST_OLDER]
        for key, leases in older.items():
            if leases and key in kept:
                continue
            if leases:
                _log.warning(
                    "%s version %d: fronts lease more than %d older versions: the one with fewest "
                    "leases is let go", *key, _MOST_OLDER,
                )  # fmt: skip
            _, path = self._held.pop(key)
            self._publish()
            self._repository.release(path)
            _log.info("let go of %s version %d", *key)

    def _publish(self) -> None:
        self._shares.replace([share for share, _ in self._held.values()])
