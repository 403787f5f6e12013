"""Rollback of labels."""

from sharded_infer.errors import NotFoundError
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.repository import Repository


def roll_back(repository: Repository, model: str, label: str, version: int | None = None) -> Labels:
    """Move a label back atomically, by default to its previous or next lower version.

    Raises NotFoundError if there is no such label or version, or none to go back to.
    """

    def move(labels: Labels) -> Labels:
        return labels.moved_back(label, rollback_target(repository, model, labels, label, version))

    return repository.change_labels(model, move)


def rollback_target(
    repository: Repository, model: str, labels: Labels, label: str, version: int | None
) -> int:
    """The target version of `roll_back`, with its errors."""
    labels.version(label)
    published = repository.versions(model)
    to = labels.before(label, published) if version is None else version
    if to not in published:
        raise NotFoundError(
            f"{repository.location}: model {model!r} has no version {to}; it has "
            f"{', '.join(map(str, published))}"
        )
    return to
