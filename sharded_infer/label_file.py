"""A model's file of labels: read, and replaced in one step."""

from collections.abc import Callable

from sharded_infer.labels import LABELS_NAME, Labels, dump_labels, parse_labels
from sharded_infer.stored_versions import StoredVersions


class LabelFile:
    """The labels of one model, where they are stored."""

    def __init__(self, stored: StoredVersions, model: str) -> None:
        """Names the file; it need not exist."""
        self._stored = stored
        self._model = model

    def read(self) -> tuple[Labels, str | None]:
        """The labels, and a tag of this content; None if there is no file.

        Raises:
            ArtifactError: the file is damaged.
            StorageError: it cannot be read.
        """
        if (found := self._stored.read_labels(self._model)) is None:
            return Labels(), None
        where = f"{self._stored.location}/{self._model}/{LABELS_NAME}"
        return parse_labels(found[0], where), found[1]

    def change(self, change: Callable[[Labels], Labels]) -> Labels:
        """Replaces the labels in one step, whoever else changes them at once.

        Args:
            change: the labels after, from those before; called again if they changed meanwhile.

        Returns:
            The labels after.

        Raises:
            ArtifactError: the file is damaged.
            StorageError: it cannot be read or written.
        """
        while True:
            labels, tag = self.read()
            changed = change(labels)
            if changed == labels or self._stored.replace_labels(
                self._model, dump_labels(changed), tag
            ):
                return changed
