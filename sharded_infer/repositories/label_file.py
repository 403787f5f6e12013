"""The stored file of a model's labels, which is replaced in one step."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sharded_infer.repositories.labels import LABELS_NAME, Labels, dump_labels, parse_labels
from sharded_infer.repositories.stored_versions import StoredVersions


class LabelFile:
    """The stored labels of one model."""

    def __init__(self, stored: StoredVersions, model: str) -> None:
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
        """Replaces the labels in one step, also under concurrent changes.

        Args:
            change: returns the new labels; called again if the labels changed meanwhile.

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

    def weigh(self, weights: Mapping[str, int]) -> Labels:
        """Sets the weights of labels, in one step.

        Args:
            weights: as `Labels.weighted`; empty: ended promotions are forgotten too.

        Raises:
            InputError, NotFoundError: as `Labels.weighted`, or a label's version is gone.
            ArtifactError: a label's version, or the file, is damaged.
            StorageError: something cannot be read or written.
        """

        def change(labels: Labels) -> Labels:
            weighted = labels.weighted(weights)
            for label in weights:
                self._stored.manifest(self._model, labels.versions[label])
            # Releases before weights and promotions read such a file.
            return weighted if weights else replace(weighted, ended={})

        return self.change(change)
