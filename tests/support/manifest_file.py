"""Manual changes of a version's manifest, with a valid checksum."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum

Document = dict[str, Any]


def edit_manifest(version: Path, edit: Callable[[Document], object]) -> None:
    path = version / MANIFEST_NAME
    document = json.loads(path.read_bytes())
    document.pop("sha256", None)
    edit(document)
    path.write_bytes(with_checksum(json.dumps(document).encode()))
