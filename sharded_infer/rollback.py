"""Moving a label back."""

from sharded_infer.errors import NotFoundError
from sharded_infer.labels import Labels
from sharded_infer.repository import Repository


def roll_back(repository: Repository, model: str, label: str, version: int | None = None) -> Labels:
    """Moves a label back, in one step.

    Args:
        repository: where.
        model: the model.
        label: the label.
        version: where to; None takes the version that it pointed at before, or without such the
            next lower one.

    Returns:
        The model's labels as they are now.

    Raises:
        NotFoundError: there is no such label or version, or none to go back to.
    """

    def move(labels: Labels) -> Labels:
        return labels.moved_back(label, rollback_target(repository, model, labels, label, version))

    return repository.change_labels(model, move)


def rollback_target(
    repository: Repository, model: str, labels: Labels, label: str, version: int | None
) -> int:
    """The version that a label would be moved back to.

    Raises:
        NotFoundError: there is no such label or version, or none to go back to.
    """
    labels.version(label)
    published = repository.versions(model)
    to = labels.before(label, published) if version is None else version
    if to not in published:
        raise NotFoundError(
            f"{repository.location}: model {model!r} has no version {to}; it has "
            f"{', '.join(map(str, published))}"
        )
    return to
