"""The stored file of a model's labels, replaced atomically."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sharded_infer.repositories.labels import (
    LABELS_NAME,
    MAX_LABELS_BYTES,
    Labels,
    dump_labels,
    parse_labels,
)
from sharded_infer.repositories.stored_versions import StoredVersions


class LabelFile:
    """The stored labels of one model; ArtifactError if damaged, StorageError if inaccessible."""

    def __init__(self, stored: StoredVersions, model: str) -> None:
        self._stored = stored
        self._model = model

    def read(self) -> tuple[Labels, str | None]:
        """The labels, and a tag of this content; None if there is no file."""
        found = self._stored.read_file(self._model, LABELS_NAME, MAX_LABELS_BYTES)
        if found is None:
            return Labels(), None
        where = f"{self._stored.location}/{self._model}/{LABELS_NAME}"
        return parse_labels(found[0], where), found[1]

    def change(self, change: Callable[[Labels], Labels]) -> Labels:
        """Replace the labels atomically, also under concurrent changes.

        `change` returns the new labels; it is called again if they changed meanwhile.
        """
        while True:
            labels, tag = self.read()
            changed = change(labels)
            if changed == labels or self._stored.replace_file(
                self._model, LABELS_NAME, dump_labels(changed), tag, MAX_LABELS_BYTES
            ):
                return changed

    def weigh(self, weights: Mapping[str, int]) -> Labels:
        """Set the weights of labels atomically; empty weights clear ended promotions too.

        Raises InputError or NotFoundError as `Labels.weighted`, or if a label's version is gone;
        ArtifactError also if that version is damaged.
        """

        def change(labels: Labels) -> Labels:
            weighted = labels.weighted(weights)
            for label in weights:
                self._stored.manifest(self._model, labels.versions[label])
            # Releases without weights and promotions can read such a file.
            return weighted if weights else replace(weighted, ended={})

        return self.change(change)
