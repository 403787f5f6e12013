"""Numbers of versions, none of which is used twice: the highest one is kept beside the versions."""

from sharded_infer.errors import ArtifactError
from sharded_infer.repositories.stored_versions import (
    MOST_VERSION,
    StoredVersions,
    version_number,
)

HIGHEST_NAME = "highest_version"
_MAX_BYTES = 1024


class VersionNumbers:
    """Numbers of one model's versions; ArtifactError if the file of the highest is damaged."""

    def __init__(self, stored: StoredVersions, model: str) -> None:
        self._stored = stored
        self._model = model

    def take(self, version: int | None) -> int:
        """Reserve a number, None: the next one, also under concurrent calls."""
        where = f"{self._stored.location}/{self._model}"
        if version is not None and not 1 <= version <= MOST_VERSION:
            raise ArtifactError(
                f"{where}: expected a version from 1 to {MOST_VERSION}, got {version}"
            )
        while True:
            highest, tag = self._read(where)
            number = max(highest, self._stored.highest(self._model)) + 1
            number = number if version is None else version
            if number > MOST_VERSION:
                raise ArtifactError(f"{where}: no version number is left above {MOST_VERSION}")
            content = f"{max(number, highest)}\n".encode()
            if number <= highest or self._stored.replace_file(
                self._model, HIGHEST_NAME, content, tag, _MAX_BYTES
            ):
                return number

    def _read(self, where: str) -> tuple[int, str | None]:
        # Earlier releases wrote none.
        found = self._stored.read_file(self._model, HIGHEST_NAME, _MAX_BYTES)
        if found is None:
            return 0, None
        number = version_number(found[0].decode(errors="replace").removesuffix("\n"))
        if number is None:
            raise ArtifactError(
                f"{where}/{HIGHEST_NAME}: expected a version number, got {found[0][:40]!r}"
            )
        return number, found[1]
