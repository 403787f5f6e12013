"""Garbage collection of unneeded versions."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sharded_infer.artifacts.manifest import Manifest
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.stored_versions import Leftovers

# Far longer than any upload: newer files may belong to an active publisher.
SAFE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class VersionFate:
    """A version, and the reason to keep it (empty: it is removed)."""

    version: int
    kept_because: str


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a (dry) garbage collection, ascending; freed bytes are not in kept versions."""

    model: str
    fates: tuple[VersionFate, ...]
    freed_bytes: int
    leftovers: Leftovers

    @property
    def removed(self) -> list[int]:
        """The removed versions."""
        return [fate.version for fate in self.fates if not fate.kept_because]


def choose_versions(versions: Iterable[int], labels: Labels, keep: int) -> list[VersionFate]:
    """Decide which versions stay, and why; labelled versions and their rollback targets stay.

    Raises InputError if `keep` is less than 1: a number could be reused.
    """
    if keep < 1:
        raise InputError(f"keep: {keep}, expected at least 1: the latest version always stays")
    ordered = sorted(versions)
    reasons = dict.fromkeys(ordered[-keep:], f"one of the latest {keep}")
    for label, version in labels.versions.items():
        try:
            reasons.setdefault(labels.before(label, ordered), f"{label} would be rolled back to it")
        except NotFoundError:
            continue
        finally:
            reasons[version] = f"label {label}"
    # Versions half removed by a killed collection are removed: no label can name them.
    return [
        VersionFate(version, "" if version in labels.removing else reasons.get(version, ""))
        for version in ordered
    ]


def collect(
    repository: Repository,
    model: str,
    *,
    keep: int,
    dry_run: bool = False,
    safe_seconds: float = SAFE_SECONDS,
    progress: Progress = no_progress,
) -> Collected:
    """Remove versions that are not among the latest, have no label and are not in use.

    Args:
        keep: the number of latest versions that stay.
        safe_seconds: minimum age of a store's removed unused files, by the store's clock.
        progress: called with the versions removed so far.

    Raises:
        InputError: `keep` is less than 1.
        NotFoundError: no such model.
        ArtifactError: a damaged manifest or label file, whose needs are unknown.
        StorageError: the repository is unreadable or unwritable.
    """
    manifests = {n: repository.manifest(model, n) for n in repository.versions(model)}
    fates: list[VersionFate] = []

    def mark(labels: Labels) -> Labels:
        nonlocal fates
        fates = [
            replace(fate, kept_because="in use")
            if not fate.kept_because and repository.in_use(model, fate.version)
            else fate
            for fate in choose_versions(manifests, labels, keep)
        ]
        going = {fate.version for fate in fates if not fate.kept_because}
        return replace(labels, removing=tuple(sorted(going)))

    if dry_run:
        mark(repository.label_history(model))
    else:
        # Marked first: no label moves to a version between its choice and its removal.
        repository.change_labels(model, mark)
        chosen = [fate.version for fate in fates if not fate.kept_because]
        for count, version in enumerate(chosen, start=1):
            if not repository.remove(model, version):
                fates = [
                    replace(fate, kept_because="in use") if fate.version == version else fate
                    for fate in fates
                ]
            progress("removing versions", count, len(chosen))
        repository.change_labels(
            model,
            lambda labels: replace(
                labels, removing=tuple(n for n in labels.removing if n not in chosen)
            ),
        )
    leftovers = repository.leftovers(model, safe_seconds)
    if not dry_run:
        repository.remove_leftovers(model, leftovers)
    gone = {fate.version for fate in fates if not fate.kept_because}
    freed = _freed_bytes(
        [manifests[number] for number in sorted(gone)],
        [manifest for number, manifest in manifests.items() if number not in gone],
    )
    return Collected(model, tuple(fates), freed, leftovers)


def _freed_bytes(removed: Iterable[Manifest], kept: Iterable[Manifest]) -> int:
    """Bytes of files that only removed versions have; equal files are stored once."""
    freed = {record.sha256: record.bytes for m in removed for record in m.files.values()}
    needed = {record.sha256 for m in kept for record in m.files.values()}
    return sum(size for sha256, size in freed.items() if sha256 not in needed)
