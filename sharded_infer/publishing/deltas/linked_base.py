"""Files that a new version shares with its base."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import FileRecord


def link_files(base: Artifact, staged: Path, names: Collection[str]) -> dict[str, FileRecord]:
    """Link files of a version into another's folder, or copy them where links fail.

    Returns their records, in the base's order.
    """
    for name in names:
        source, target = base.path / name, staged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            # No links on this file system, or too many of this file.
            shutil.copyfile(source, target)
    return {name: record for name, record in base.manifest.files.items() if name in names}
